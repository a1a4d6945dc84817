"""Hung or slow: what must never be called hung, and from when on something is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from msgspec.structs import replace

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.descriptors import Descriptor
from hangtop_core.model import DescriptorTable, Node
from support import build
from support.build import (
    FUTEX,
    INIT,
    LOADER,
    NOW,
    POLL,
    RUN,
    SLEEP,
    WAITPID,
    World,
    c10d,
    frame,
    user,
    worker_in,
)

if TYPE_CHECKING:
    from hangtop_core.diagnosis import Diagnosis


def run(world: World, hang_after: float = 30.0, **job: Any) -> Diagnosis:
    snapshot = world.snapshot(**job)
    return diagnose(snapshot, snapshot.job(None), hang_after)


def causes(found: Diagnosis) -> list[str]:
    return [one.cause for one in found.verdicts]


def test_waiters_that_moved_a_moment_ago_are_progress() -> None:
    world = World()
    world.waiters(4, moved_at=NOW - 0.1)
    found = run(world)
    assert (found.state, causes(found)) == ("progressing", [])
    assert found.stalled_for_s is None


def test_a_rank_that_somebody_held_for_a_moment_has_hung_all_the_while() -> None:
    # GIVEN a rank that sleeps and three that wait, all of which a tool woke up a second ago
    world = World()
    world.waiters(3, moved_at=NOW - 1.0, left_at=NOW - 300.0)
    world.add(user("load_batch", 40), SLEEP, moved_at=NOW - 1.0, left_at=NOW - 300.0)
    found = run(world)
    assert (found.state, causes(found)) == ("hung", ["missing-collective"])
    assert found.hung_for_s == pytest.approx(300.0)


def test_a_rank_that_polls_and_was_held_since_its_last_sample_still_hangs() -> None:
    # GIVEN a rank whose queue stays empty, sampled seven seconds ago and held one second ago
    world = World(observed_since=NOW - 36.0)
    world.waiters(3, moved_at=NOW - 1.0, left_at=NOW - 35.0)
    rank = world.add(build.QUEUE, FUTEX, moved_at=NOW - 1.0, left_at=NOW - 35.0)
    assert rank.sample is not None
    old = msgspec.structs.replace(rank.sample, at=NOW - 7.0)
    world.ranks[3] = msgspec.structs.replace(rank, sample=old)
    assert run(world).state == "hung"


def test_a_rank_that_is_read_on_its_way_back_into_its_wait_still_hangs() -> None:
    world = World()
    world.waiters(3)
    world.waiters(1, facts=RUN, left_at=NOW - 300.0)
    assert run(world).state == "hung"


@pytest.mark.parametrize("age", [6.0, 12.0, 20.0, 29.0])
def test_a_slow_step_is_a_stall_with_a_suspect_but_no_hang(age: float) -> None:
    # GIVEN one rank that sleeps for 20 seconds in each step, and others that wait for it
    world = World()
    world.waiters(3, moved_at=NOW - age)
    world.add(user("load_batch", 40), SLEEP, moved_at=NOW - age)
    # THEN the state is undecided, and the slow rank is already suspected
    found = run(world)
    assert found.state == "unknown"
    assert found.stalled_for_s == pytest.approx(age)
    assert found.hung_for_s is None
    assert causes(found) == ["missing-collective"]
    assert found.verdicts[0].confidence < 0.85


@pytest.mark.parametrize("last", [5.0, 10.0, 20.0])
def test_a_loop_of_short_sleeps_while_others_get_on_is_not_a_hang(last: float) -> None:
    # GIVEN a rank that always sleeps when sampled, in a job whose steps take up to 20 seconds
    world = World()
    world.waiters(3, moved_at=NOW - last)
    world.add(user("load_batch", 40), SLEEP, moved_at=NOW - 0.3)
    assert run(world).state in ("progressing", "unknown")


def test_a_rank_that_polls_for_ever_is_hung_although_its_thread_runs() -> None:
    # GIVEN a rank that looks for a file twice a second, and others that have waited five minutes
    world = World()
    world.waiters(3)
    world.add(user("wait_for_file", 40, "time.sleep(0.5)"), SLEEP, moved_at=NOW - 0.2)
    found = run(world)
    assert (found.state, causes(found)) == ("hung", ["missing-collective"])
    assert found.hung_for_s == pytest.approx(300.0)  # as long as the others are known to wait


def test_long_computation_that_moves_from_function_to_function_is_a_straggler() -> None:
    # GIVEN a rank whose functions changed two seconds ago, and others that have waited a minute
    world = World()
    world.waiters(3, moved_at=NOW - 60.0)
    world.add(user("evaluate", 40), RUN, sample={"same_functions_since": NOW - 2.0})
    found = run(world)
    assert (found.state, causes(found)) == ("progressing", ["straggler"])
    assert found.verdicts[0].culprits[0].rank == 3
    assert "slow, not stuck" in found.verdicts[0].summary


@pytest.mark.parametrize(
    ("stack", "facts", "printed_ago", "watched", "state"),
    [
        (user("evaluate", 40), RUN, 3.0, 90.0, "progressing"),
        (user("evaluate", 40), RUN, None, 90.0, "hung"),
        # A progress bar alone is not believed for ever.
        (user("evaluate", 40), RUN, 3.0, 700.0, "hung"),
        # Who sleeps and prints may be in a loop that waits; who waits for others does not get on.
        (user("wait_for_file", 40, "time.sleep(1)"), SLEEP, 1.0, 90.0, "hung"),
        (c10d("all_reduce"), FUTEX, 1.0, 90.0, "hung"),
    ],
)
def test_a_log_that_the_main_thread_writes_means_that_it_gets_on(
    stack: Any, facts: Any, printed_ago: float | None, watched: float, state: str
) -> None:
    world = World(observed_since=NOW - watched)
    world.waiters(3, moved_at=NOW - watched - 10)
    printed = None if printed_ago is None else NOW - printed_ago
    moved = NOW - watched - 10 if facts is FUTEX else NOW - 0.2
    world.add(stack, facts, moved_at=moved, printed_at=printed)
    assert run(world).state == state


@pytest.mark.parametrize(
    ("computed_ago", "watched", "state"),
    [(0.4, 90.0, "progressing"), (None, 90.0, "hung"), (80.0, 90.0, "hung"), (0.4, 700.0, "hung")],
)
def test_who_computes_between_sleeps_gets_on_and_who_only_looks_does_not(
    computed_ago: float | None, watched: float, state: str
) -> None:
    world = World(observed_since=NOW - watched)
    world.waiters(3, moved_at=NOW - watched - 10)
    computed = None if computed_ago is None else NOW - computed_ago
    world.add(
        user("generate", 91, "time.sleep(0.03)"), SLEEP, moved_at=NOW - 0.1, computed_at=computed
    )
    found = run(world)
    assert found.state == state
    assert "sleeps again and again at train.py:91" in found.verdicts[0].summary


def test_who_sleeps_between_attempts_that_fail_does_not_get_on_by_computing() -> None:
    """As one that tries to save to a full disk: what it writes there takes a CPU each time."""
    world = World(observed_since=NOW - 90)
    world.waiters(3, moved_at=NOW - 100)
    one, *below = user("save", 58, "time.sleep(1)")
    stack = (
        replace(one, beside=((53, "torch.save(model, path)"), (56, "except OSError:"))),
        *below,
    )
    world.add(stack, SLEEP, moved_at=NOW - 0.1, computed_at=NOW - 0.4)
    assert run(world).state == "hung"


def test_one_long_sleep_that_a_tool_has_interrupted_is_one_sleep() -> None:
    world = World(observed_since=NOW - 90)
    world.waiters(3, moved_at=NOW - 100)
    world.add(user("cool_down", 35, "time.sleep(3600)"), SLEEP, moved_at=NOW - 2, left_at=NOW - 100)
    summary = run(world).verdicts[0].summary
    assert "It sleeps at train.py:35" in summary


def test_a_busy_loop_is_hung_only_after_it_was_watched_for_the_hang_time() -> None:
    world = World(observed_since=NOW - 20.0)
    world.waiters(3)
    world.add(user("tune", 51), RUN)
    found = run(world)
    assert (found.state, causes(found)) == ("unknown", ["busy-in-python"])
    world = World(observed_since=NOW - 40.0)
    world.waiters(3)
    world.add(user("tune", 51), RUN)
    assert run(world).state == "hung"


def test_a_checkpoint_whose_bytes_grow_is_progress() -> None:
    world = World()
    world.waiters(3)
    world.add(build.SAVE, ("D", "folio_wait", "write", 9, None), io_moved_at=NOW - 1.0)
    found = run(world)
    assert (found.state, causes(found)) == ("progressing", ["checkpoint-slow"])
    assert "not a hang" in found.verdicts[0].summary


def test_a_large_transfer_in_a_collective_is_progress() -> None:
    world = World()
    world.waiters(4, moved_at=NOW - 45.0, io_moved_at=NOW - 0.5, cpu_share=0.4)
    assert run(world).state == "progressing"


def test_log_lines_of_a_background_thread_are_no_progress() -> None:
    world = World()
    world.waiters(3, io_moved_at=NOW - 0.5)
    world.add(user("cool_down", 41), SLEEP, io_moved_at=NOW - 0.5)
    assert run(world).state == "hung"


def test_a_compiler_that_runs_is_progress() -> None:
    world = World()
    world.waiters(3)
    rank = world.add(build.COMPILE, FUTEX)
    child = world.process(4999, RUN, role="compile-worker", comm="cc1plus")
    world.give_children(rank, [(child, None)], moved_at=NOW - 0.1)
    found = run(world)
    assert (found.state, causes(found)) == ("progressing", ["compiling"])


def test_a_worker_that_moves_is_progress_for_its_rank() -> None:
    world = World()
    world.waiters(3)
    rank = world.add(LOADER, POLL)
    process, sample = world.worker(rank, worker_in("decode", 80), RUN)
    moving = world.sample(worker_in("decode", 80), pid=process.pid, same_functions_since=NOW - 1.0)
    world.give_children(rank, [(process, moving)], moved_at=NOW)
    found = run(world)
    assert sample.count == 10
    assert (found.state, causes(found)) == ("progressing", ["data-starved"])


def test_a_child_program_at_work_is_no_hang() -> None:
    world = World()
    world.waiters(3)
    rank = world.add(build.CHILD, WAITPID)
    child = world.process(4999, RUN, role="subprocess", ppid=rank.process.pid)
    world.give_children(rank, [(child, None)], moved_at=NOW - 0.5)
    assert run(world).state == "progressing"


@pytest.mark.parametrize(("ago", "state"), [(0.5, "progressing"), (600.0, "hung")])
def test_a_pool_at_work_is_no_hang_and_one_at_rest_is(ago: float, state: str) -> None:
    world = World()
    world.waiters(3)
    pool = (
        frame("wait", "py:threading.py", 327),
        frame("next", "py:multiprocessing/pool.py", 873),
        *user("tokenize", 154),
    )
    rank = world.add(pool, FUTEX)
    child = world.process(4999, RUN, role="subprocess", ppid=rank.process.pid)
    world.give_children(rank, [(child, None)], moved_at=NOW - ago)
    found = run(world)
    assert found.state == state
    assert state == "progressing" or causes(found) == ["child-process-wait"]


def test_ranks_that_just_start_are_starting() -> None:
    world = World(observed_since=NOW - 10.0)
    world.waiters(3, INIT, POLL, moved_at=NOW - 1.0)
    assert run(world, world_size=4).state == "starting"


def test_a_job_is_starting_while_ranks_wait_for_one_that_still_works() -> None:
    world = World(observed_since=NOW - 10.0)
    world.waiters(3, INIT, POLL)
    world.add(user("tokenize", 33), RUN, sample={"same_functions_since": NOW - 1.0})
    assert run(world, world_size=4).state == "starting"
    world.add(c10d("all_reduce"), FUTEX)
    assert run(world, world_size=5).state == "progressing", "there is a group already"


def test_a_launcher_that_just_came_is_starting() -> None:
    world = World(observed_since=NOW - 6.0)
    launcher = world.process(3000, SLEEP, role="launcher", started_at=NOW - 9.0)
    samples = {":3000": world.sample(build.RENDEZVOUS, pid=3000)}
    found = run(world, launchers=(launcher,), launcher_samples=samples, nodes=("n1",))
    assert found.state == "starting"


def test_all_at_work_and_nobody_waiting_is_a_long_phase() -> None:
    world = World()
    for _ in range(4):
        world.add(user("tokenize", 33), RUN)
    found = run(world)
    assert (found.state, causes(found)) == ("progressing", ["long-phase"])
    assert found.verdicts[0].culprits == ()


@pytest.mark.parametrize(
    ("read_ago", "state"), [(1.0, "progressing"), (15.0, "progressing"), (40.0, "unknown")]
)
def test_ranks_of_a_node_that_is_read_seldom_are_not_called_stalled(
    read_ago: float, state: str
) -> None:
    """They sleep between steps, in the same functions, and ran just before they were read."""
    world = World()
    world.nodes["n1"] = Node("n1", "ready", last_seen=NOW - read_ago)
    for _ in range(3):
        world.add(user("pace", 9, "time.sleep(0.3)"), SLEEP, moved_at=NOW - read_ago - 0.2)
    found = run(world)
    assert found.state == state
    assert (found.stalled_for_s is None) == (state == "progressing")


def test_all_ranks_gone_is_exited_and_the_first_failure_is_to_blame() -> None:
    world = World()
    for rank, (code, ago) in enumerate([(-15, 1.0), (1, 3.0), (-15, 1.0)]):
        gone = {"gone_at": NOW - ago, "exit_code": code}
        world.add(None, None, state="exited", process=gone, rank=rank)
    found = run(world)
    assert (found.state, causes(found)) == ("exited", ["rank-exited"])
    assert found.verdicts[0].culprits[0].rank == 1


def test_nobody_is_to_blame_when_all_ranks_have_left_together() -> None:
    def left(*ago: float, code: int | None = None) -> Diagnosis:
        world = World()
        for rank, seconds in enumerate(ago):
            gone = {"gone_at": NOW - seconds, "exit_code": code}
            world.add(None, None, state="exited", process=gone, rank=rank)
        return run(world)

    for together in (left(6.0, 5.0, 7.0), left(60.0, 9.0, code=0)):
        assert (together.state, causes(together)) == ("exited", [])
    [early] = left(60.0, 9.0, 8.0).verdicts
    assert [c.rank for c in early.culprits] == [0]
    assert early.confidence == 0.5


def test_no_job_says_what_was_looked_for() -> None:
    snapshot = World().snapshot(nodes=())
    found = diagnose(snapshot, None)
    assert (found.state, found.job, found.verdicts) == ("unknown", None, ())


def test_a_spinning_main_thread_in_a_collective_is_never_called_hung_by_itself() -> None:
    # GIVEN a CUDA job: its main threads spin while they wait, whether it gets on or not
    world = World()
    world.waiters(4, c10d("barrier"), RUN)
    assert run(world).state != "hung"


def training_in_a_thread(cpu_share: float) -> World:
    """All ranks' main threads join a thread that trains."""
    world = World()
    for rank in range(4):
        others = [("trainer", 4000 + rank * 10 + 5, c10d("all_reduce"), False)]
        world.add(build.JOIN, FUTEX, sample={"others": others}, cpu_share=cpu_share)
    return world


def test_a_main_thread_that_waits_for_a_training_thread_is_not_the_measure() -> None:
    assert run(training_in_a_thread(0.6)).state == "progressing"
    assert run(training_in_a_thread(0.004)).state == "hung"


@pytest.mark.parametrize(
    ("worked", "at", "ranks", "state"),
    [
        (NOW - 2.0, RUN, 4, "progressing"),
        (None, RUN, 4, "progressing"),
        (None, FUTEX, 4, "hung"),
        (None, RUN, 3, "hung"),
    ],
)
def test_ranks_that_starve_all_at_once_while_workers_are_busy_are_slow(
    worked: float | None, at: build.Facts, ranks: int, state: str
) -> None:
    # GIVEN ranks in their DataLoader whenever sampled, their workers in one function
    world = World()
    for _ in range(ranks):
        rank = world.add(LOADER, POLL, moved_at=NOW - 1.0, worked_at=worked)
        child = world.worker(rank, worker_in("decode", 80), at)
        world.give_children(rank, [child], moved_at=NOW if at is RUN else None)
    # AND perhaps another one, which waits for them
    if ranks < 4:
        world.waiters(1)
    assert run(world).state == state


@pytest.mark.parametrize(
    ("gil", "watched", "state"),
    [(True, 60.0, "hung"), (False, 60.0, "unknown"), (False, 600.0, "hung")],
)
def test_native_code_that_computes_gets_ten_times_as_long(
    gil: bool, watched: float, state: str
) -> None:
    world = World(observed_since=NOW - watched)
    world.add(user("evaluate", 30), RUN, sample={"active": True, "gil": gil}, main_cpu_share=0.9)
    world.waiters(3)
    assert run(world).state == state


def test_a_writer_that_is_woken_up_by_its_reader_gets_on() -> None:
    world = World()
    world.add(user("upload", 41), build.PIPE_WRITE, moved_at=NOW - 0.5)
    world.waiters(3)
    assert run(world).state == "progressing"


SAVED = Descriptor(9, "file", "/data/ckpt.pt", mode="w", mount="/")


@pytest.mark.parametrize(
    ("full", "files", "state"),
    [
        ((), (), "progressing"),
        (("/scratch",), (), "hung"),
        (("/scratch",), (replace(SAVED, full="space"),), "hung"),
        # It saves elsewhere, or nobody has looked yet.
        (("/scratch",), (SAVED,), "progressing"),
        (("/scratch",), None, "progressing"),
    ],
)
def test_who_writes_much_between_sleeps_gets_on_unless_nothing_fits(
    full: tuple[str, ...], files: tuple[Descriptor, ...] | None, state: str
) -> None:
    world = World()
    table = None if files is None else DescriptorTable(NOW - 1, files)
    times = {"wrote_at": NOW - 0.5, "moved_at": NOW - 0.5}
    world.add(user("save", 41), SLEEP, descriptors=table, **times)
    world.waiters(3)
    world.nodes["n1"] = Node("n1", "ready", full_mounts=full)
    found = run(world)
    assert found.state == state
    assert causes(found) == (["disk-full"] if state == "hung" else ["straggler"])


def test_a_queue_that_is_filled_again_and_again_is_progress() -> None:
    world = World()
    world.add(build.QUEUE, FUTEX, moved_at=NOW - 0.1, main_cpu_share=0.02)
    assert run(world).state == "progressing"


def test_a_healthy_job_whose_ranks_all_pause_between_steps_is_progress() -> None:
    world = World()
    for _ in range(4):
        world.add(user("load_batch", 40), SLEEP, moved_at=NOW - 0.04)
    found = run(world)
    assert (found.state, causes(found)) == ("progressing", [])


def test_a_node_that_tells_nothing_new_does_not_make_its_ranks_hang() -> None:
    # GIVEN a job that moved at the last reading of its node, which was forty seconds ago
    world = World()
    world.nodes["n1"] = Node("n1", "ready", last_seen=NOW - 40.0)
    world.waiters(1, moved_at=NOW - 41.0)
    for _ in range(3):
        world.add(user("load_batch", 40), SLEEP, moved_at=NOW - 41.0)
    assert run(world).state != "hung"


def test_a_thread_that_runs_is_known_only_as_far_as_its_last_sample() -> None:
    # GIVEN a loop that was last sampled half a minute ago, twelve seconds after the first time
    world = World()
    world.waiters(3)
    rank = world.add(user("tune", 51), RUN)
    assert rank.sample is not None
    old = msgspec.structs.replace(rank.sample, at=NOW - 47.0)
    world.ranks[3] = msgspec.structs.replace(rank, sample=old)
    assert run(world).state == "unknown"


def test_ranks_of_a_lost_node_do_not_hide_that_the_others_hang() -> None:
    world = World()
    world.nodes["n2"] = Node("n2", "lost", last_seen=NOW - 299.0, reason="no answer for 30 s")
    world.waiters(3)
    world.waiters(1, node="n2")
    assert run(world).state == "hung"


@pytest.mark.parametrize("moved_at", [NOW - 300.0, NOW - 2.0])
def test_nothing_is_said_of_ranks_yet_to_be_sampled(moved_at: float) -> None:
    world = World()
    for _ in range(4):
        world.add(None, FUTEX, moved_at=moved_at)
    world.ranks = [msgspec.structs.replace(rank, sample=None) for rank in world.ranks]
    found = run(world)
    assert (found.state, causes(found)) == ("unknown", [])


@pytest.mark.parametrize(
    ("stack", "facts"),
    [
        (build.URLLIB, build.RECVFROM),
        (build.URLLIB, POLL),  # with a timeout
        (user("read_frames", 9), build.PIPE_READ),
    ],
)
@pytest.mark.parametrize(("woken", "state"), [(1.0, "progressing"), (90.0, "hung")])
def test_what_trickles_in_from_a_socket_or_pipe_is_progress(
    stack: Any, facts: Any, woken: float, state: str
) -> None:
    # GIVEN three ranks in a barrier, and one that reads: only data wake it up
    world = World(observed_since=NOW - 60.0)
    world.waiters(3)
    world.add(stack, facts, moved_at=NOW - woken)
    assert run(world).state == state


def test_a_worker_that_reads_a_slow_stream_gets_on() -> None:
    for woken, state in ((1.0, "progressing"), (90.0, "hung")):
        world = World(observed_since=NOW - 60.0)
        world.waiters(3)
        rank = world.add(LOADER, POLL, moved_at=NOW - 0.5)
        reading = (*build.URLLIB[:3], *worker_in("fetch_row", 41))
        child = world.worker(rank, reading, build.RECVFROM)
        world.give_children(rank, [child], moved_at=NOW - woken)
        assert run(world).state == state


@pytest.mark.parametrize("stack", [build.JOIN, build.QUEUE])
@pytest.mark.parametrize(("wrote", "state"), [(1.0, "progressing"), (90.0, "hung")])
def test_who_waits_for_a_thread_that_writes_much_gets_on(
    stack: Any, wrote: float, state: str
) -> None:
    world = World(observed_since=NOW - 60.0)
    world.waiters(3)
    world.add(stack, FUTEX, wrote_at=NOW - wrote)
    assert run(world).state == state


MAIN_TID, THREAD_TID, CHILD_TID = 4030, 4033, 9000
POOL = frame("_worker", "py:concurrent/futures/thread.py", 81)
FUTURE = (
    build.QUEUE[0],
    frame("Future.result", "py:concurrent/futures/_base.py", 451),
    *user("save", 44),
)


@pytest.mark.parametrize(
    ("stack", "facts", "tid", "state"),
    [
        (build.JOIN, FUTEX, THREAD_TID, "progressing"),
        (build.QUEUE, FUTEX, THREAD_TID, "progressing"),
        (build.QUEUE, FUTEX, CHILD_TID, "progressing"),
        (user("wait_for_upload", 40), SLEEP, THREAD_TID, "progressing"),
        (build.URLLIB, POLL, MAIN_TID, "progressing"),
        (build.CHILD, WAITPID, CHILD_TID, "progressing"),
        (build.CHILD, WAITPID, CHILD_TID + 1, "progressing"),
        # What it does not wait for; a service that it has started has threads for who asks.
        (build.QUEUE, FUTEX, CHILD_TID + 1, "hung"),
        (build.JOIN, FUTEX, CHILD_TID, "hung"),
        (build.URLLIB, POLL, THREAD_TID, "hung"),
        (build.CHILD, WAITPID, THREAD_TID, "hung"),
        (c10d("all_reduce"), FUTEX, THREAD_TID, "hung"),
        # A future is made by a thread of a pool, not by one that was started for something else.
        (FUTURE, FUTEX, THREAD_TID, "hung"),
        (FUTURE, FUTEX, THREAD_TID + 1, "progressing"),
    ],
)
def test_who_waits_for_a_connection_gets_on_as_that_does(
    stack: Any, facts: Any, tid: int, state: str
) -> None:
    for flowed, told in ((1.0, state), (90.0, "hung")):
        world = World(observed_since=NOW - 95.0)
        world.waiters(3)
        threads = tuple(build.thread(THREAD_TID + n, POLL) for n in (0, 1))
        sending = (build.URLLIB[0], frame("upload", "train.py", 7))
        others = [
            ("telemetry", THREAD_TID, sending, False),
            ("pool", THREAD_TID + 1, (*sending, POOL), False),
        ]
        rank = world.add(
            stack,
            facts,
            process={"threads": threads},
            sample={"others": others},
            flowed_at={tid: NOW - flowed},
        )
        child = world.process(CHILD_TID, build.RECVFROM, role="subprocess", rank_pid=MAIN_TID)
        world.give_children(rank, [(child, None)])
        assert run(world).state == told


@pytest.mark.parametrize(
    ("kind", "flowed", "watched", "state"),
    [
        ("main", 2.0, 95.0, "progressing"),
        ("main", 90.0, 95.0, "hung"),
        ("main", 2.0, 700.0, "hung"),  # it may be a heartbeat
        ("future", 2.0, 95.0, "progressing"),
        ("joined", 2.0, 95.0, "progressing"),
        ("beside", 2.0, 95.0, "hung"),  # which of two threads it waits for is not known
        ("child", 2.0, 95.0, "progressing"),
        ("lock", 2.0, 95.0, "hung"),
    ],
)
def test_an_event_loop_gets_on_while_anything_comes(
    kind: str, flowed: float, watched: float, state: str
) -> None:
    world = World(observed_since=NOW - watched)
    world.waiters(3)
    run_ = frame("BaseEventLoop._run_once", "py:asyncio/base_events.py", 1890)
    loop = (frame("EpollSelector.select", "py:selectors.py", 468), run_, *user("score", 7))
    stack, tid = {
        "main": (loop, MAIN_TID),
        "future": (FUTURE, THREAD_TID),
        "joined": (build.JOIN, THREAD_TID),
        "beside": (build.JOIN, THREAD_TID),
        "child": (build.QUEUE, CHILD_TID),
        "lock": (build.QUEUE, THREAD_TID + 1),
    }[kind]
    others = [("loop", THREAD_TID, loop, False)] if kind in ("future", "joined", "beside") else []
    others += [("b", THREAD_TID + 1, user("f", 3), False)] if kind in ("future", "beside") else []
    rank = world.add(
        stack,
        POLL if kind == "main" else FUTEX,
        sample={"others": others},
        flowed_at={-tid: NOW - flowed},
    )
    child = world.process(CHILD_TID, POLL, role="subprocess", rank_pid=MAIN_TID)
    world.give_children(rank, [(child, None)])
    assert run(world).state == state


@pytest.mark.parametrize(
    ("share", "role", "watched", "state"),
    [
        (0.9, "subprocess", 90.0, "progressing"),
        (0.02, "subprocess", 90.0, "hung"),  # it only looks at something now and then
        (0.9, "dataloader-worker", 90.0, "hung"),
        (0.9, "subprocess", 700.0, "hung"),  # it may work on something else
    ],
)
def test_a_queue_whose_producer_works_hard_is_not_yet_a_hang(
    share: float, role: str, watched: float, state: str
) -> None:
    world = World(observed_since=NOW - watched)
    world.waiters(3, moved_at=NOW - watched)
    rank = world.add(build.QUEUE, FUTEX, moved_at=NOW - watched)
    actor = world.process(4099, RUN, role=role, label="subprocess python", rank=3, rank_pid=4030)
    world.give_children(rank, [(actor, None)])
    world.ranks[3] = msgspec.structs.replace(world.ranks[3], child_cpu_share={4099: share})
    assert run(world).state == state


def looping(text: str = "while True:") -> Any:
    """A main thread that draws, in a loop around the call."""
    return (
        frame("draw", "train.py", 12, "return torch.randn(8)"),
        replace(frame("sample", "train.py", 21, "x = draw()"), within=((20, text),)),
        *build.BASE,
    )


@pytest.mark.parametrize(
    ("stack", "waited", "signs", "state"),
    [
        (looping(), 400.0, {}, "hung"),
        (looping("while (True):"), 400.0, {}, "hung"),
        # For so long work may take.
        (looping(), 200.0, {}, "progressing"),
        # These end by themselves.
        (looping("for x in loader:"), 400.0, {}, "progressing"),
        (looping("while len(kept) < 100:"), 400.0, {}, "progressing"),
        # It gets something done.
        (looping(), 400.0, {"printed_at": NOW - 9.0}, "progressing"),
        (looping(), 400.0, {"io_moved_at": NOW - 9.0}, "progressing"),
        (looping(), 400.0, {"file_moved_at": NOW - 9.0}, "progressing"),
        (looping(), 400.0, {"flowed_at": {4033: NOW - 9.0}}, "progressing"),
    ],
)
def test_a_loop_without_an_end_that_nobody_else_is_in_is_a_hang_in_the_end(
    stack: Any, waited: float, signs: dict[str, Any], state: str
) -> None:
    world = World()
    world.waiters(3, moved_at=NOW - waited, left_at=NOW - waited)
    moves = {"same_functions_since": NOW - 1.0}
    world.add(stack, RUN, moved_at=NOW, main_cpu_share=0.9, sample=moves, **signs)
    found = run(world)
    assert found.state == state
    assert causes(found) == (["busy-in-python"] if state == "hung" else ["straggler"])
    if state == "hung":
        assert found.hung_for_s == pytest.approx(waited)
        assert "the loop at train.py:20 (`while" in found.verdicts[0].summary


def test_a_loop_that_those_who_wait_are_in_as_well_is_the_training_loop() -> None:
    world = World()
    base = (replace(build.MAIN, within=((70, "while True:"),)), build.MODULE)
    for _ in range(3):
        stack = (*c10d("all_reduce")[:3], *base)
        world.add(stack, FUTEX, moved_at=NOW - 400.0, left_at=NOW - 400.0)
    moves = {"same_functions_since": NOW - 1.0}
    world.add((frame("load", "train.py", 5), *base), RUN, moved_at=NOW, sample=moves)
    assert run(world).state == "progressing"
