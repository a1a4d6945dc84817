"""Hung or slow: what must never be called hung, and from when on something is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from msgspec.structs import replace

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.model.snapshot import Node
from support import situations
from support.build import NOW, World, judged
from support.situations import (
    FUTEX,
    INIT,
    LOADER,
    POLL,
    RUN,
    SLEEP,
    STOP,
    c10d,
    frame,
    user,
    worker_in,
)
from support.verdicts import causes

if TYPE_CHECKING:
    from hangtop_core.diagnosis import Diagnosis


def test_waiters_that_moved_a_moment_ago_are_progress() -> None:
    world = World()
    world.waiters(4, moved_at=NOW - 0.1)
    found = judged(world)
    assert (found.state, causes(found)) == ("progressing", [])
    assert found.stalled_for_s is None


def test_a_rank_that_somebody_held_for_a_moment_has_hung_all_the_while() -> None:
    # GIVEN a rank that sleeps and three that wait, all of which a tool woke up a second ago
    world = World()
    world.waiters(3, moved_at=NOW - 1.0, left_at=NOW - 300.0)
    world.add(user("load_batch", 40), SLEEP, moved_at=NOW - 1.0, left_at=NOW - 300.0)
    found = judged(world)
    assert (found.state, causes(found)) == ("hung", ["missing-collective"])
    assert found.hung_for_s == pytest.approx(300.0)


@pytest.mark.parametrize(("stack", "hung_for"), [("all_reduce", 300.0), ("load_batch", 40.0)])
def test_a_hang_is_as_old_as_it_was_when_a_rank_that_waited_was_stopped(
    stack: str, hung_for: float
) -> None:
    # GIVEN ranks that wait for five minutes, and one that was stopped 40 s ago: there, or at work
    world = World(observed_since=NOW - 32.0)
    world.waiters(3, moved_at=NOW - 300.0)
    frames = user(stack, 40) if stack == "load_batch" else c10d(stack)
    world.add(frames, STOP, moved_at=NOW - 40.0)
    found = judged(world)
    assert (found.state, causes(found)) == ("hung", ["rank-stopped"])
    assert found.hung_for_s == pytest.approx(hung_for)


def test_a_rank_that_polls_and_was_held_since_its_last_sample_still_hangs() -> None:
    # GIVEN a rank whose queue stays empty, sampled seven seconds ago and held one second ago
    world = World(observed_since=NOW - 36.0)
    world.waiters(3, moved_at=NOW - 1.0, left_at=NOW - 35.0)
    rank = world.add(situations.QUEUE, FUTEX, moved_at=NOW - 1.0, left_at=NOW - 35.0)
    assert rank.sample is not None
    old = msgspec.structs.replace(rank.sample, at=NOW - 7.0)
    world.ranks[3] = msgspec.structs.replace(rank, sample=old)
    assert judged(world).state == "hung"


def test_a_rank_that_is_read_on_its_way_back_into_its_wait_still_hangs() -> None:
    world = World()
    world.waiters(3)
    world.waiters(1, facts=RUN, left_at=NOW - 300.0)
    assert judged(world).state == "hung"


@pytest.mark.parametrize(("hang_after", "suspects"), [(30.0, []), (12.0, ["missing-collective"])])
def test_nobody_is_suspected_before_a_third_of_the_hang_time(
    hang_after: float, suspects: list[str]
) -> None:
    world = World()
    world.waiters(3, moved_at=NOW - 6.0)
    world.add(user("load_batch", 40), SLEEP, moved_at=NOW - 6.0)
    snapshot = world.snapshot()
    found = diagnose(snapshot, snapshot.jobs[0], hang_after)
    assert (found.state, causes(found)) == ("unknown", suspects)
    assert (found.stalled_for_s is None) == (not suspects)


@pytest.mark.parametrize("age", [11.0, 12.0, 20.0, 29.0])
def test_a_slow_step_is_a_stall_with_a_suspect_but_no_hang(age: float) -> None:
    # GIVEN one rank that sleeps for 20 seconds in each step, and others that wait for it
    world = World()
    world.waiters(3, moved_at=NOW - age)
    world.add(user("load_batch", 40), SLEEP, moved_at=NOW - age)
    # THEN the state is undecided, and the slow rank is already suspected
    found = judged(world)
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
    assert judged(world).state == "unknown"


def test_a_rank_that_polls_for_ever_is_hung_although_its_thread_runs() -> None:
    # GIVEN a rank that looks for a file twice a second, and others that have waited five minutes
    world = World()
    world.waiters(3)
    world.add(user("wait_for_file", 40, "time.sleep(0.5)"), SLEEP, moved_at=NOW - 0.2)
    found = judged(world)
    assert (found.state, causes(found)) == ("hung", ["missing-collective"])
    assert found.hung_for_s == pytest.approx(300.0)  # as long as the others are known to wait


def test_long_computation_that_moves_from_function_to_function_is_a_straggler() -> None:
    # GIVEN a rank whose functions changed two seconds ago, and others that have waited a minute
    world = World()
    world.waiters(3, moved_at=NOW - 60.0)
    world.add(user("evaluate", 40), RUN, sample={"same_functions_since": NOW - 2.0})
    found = judged(world)
    assert (found.state, causes(found)) == ("progressing", ["straggler"])
    assert found.verdicts[0].culprits[0].rank == 3
    assert "slow, not stuck" in found.verdicts[0].summary


def test_one_long_sleep_that_a_tool_has_interrupted_is_one_sleep() -> None:
    world = World(observed_since=NOW - 90)
    world.waiters(3, moved_at=NOW - 100)
    world.add(user("cool_down", 35, "time.sleep(3600)"), SLEEP, moved_at=NOW - 2, left_at=NOW - 100)
    summary = judged(world).verdicts[0].summary
    assert "It sleeps at train.py:35" in summary


def test_a_busy_loop_is_hung_only_after_it_was_watched_for_the_hang_time() -> None:
    world = World(observed_since=NOW - 20.0)
    world.waiters(3)
    world.add(user("tune", 51), RUN)
    found = judged(world)
    assert (found.state, causes(found)) == ("unknown", ["busy-in-python"])
    world = World(observed_since=NOW - 40.0)
    world.waiters(3)
    world.add(user("tune", 51), RUN)
    assert judged(world).state == "hung"


def test_ranks_that_just_start_are_starting() -> None:
    world = World(observed_since=NOW - 10.0)
    world.waiters(3, INIT, POLL, moved_at=NOW - 1.0)
    assert judged(world, world_size=4).state == "starting"


def test_a_job_is_starting_while_ranks_wait_for_one_that_still_works() -> None:
    world = World(observed_since=NOW - 10.0)
    world.waiters(3, INIT, POLL)
    world.add(user("tokenize", 33), RUN, sample={"same_functions_since": NOW - 1.0})
    assert judged(world, world_size=4).state == "starting"
    world.add(c10d("all_reduce"), FUTEX)
    assert judged(world, world_size=5).state == "progressing", "there is a group already"


def test_a_launcher_that_just_came_is_starting() -> None:
    world = World(observed_since=NOW - 6.0)
    launcher = world.process(3000, SLEEP, role="launcher", started_at=NOW - 9.0)
    samples = {":3000": world.sample(situations.RENDEZVOUS, pid=3000)}
    found = judged(world, launchers=(launcher,), launcher_samples=samples, nodes=("n1",))
    assert found.state == "starting"


def test_all_at_work_and_nobody_waiting_is_a_long_phase() -> None:
    world = World()
    for _ in range(4):
        world.add(user("tokenize", 33), RUN)
    found = judged(world)
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
    found = judged(world)
    assert found.state == state
    assert (found.stalled_for_s is None) == (state == "progressing")


def test_all_ranks_gone_is_exited_and_the_first_failure_is_to_blame() -> None:
    world = World()
    for rank, (code, ago) in enumerate([(-15, 1.0), (1, 3.0), (-15, 1.0)]):
        gone = {"gone_at": NOW - ago, "exit_code": code}
        world.add(None, None, state="exited", process=gone, rank=rank)
    found = judged(world)
    assert (found.state, causes(found)) == ("exited", ["rank-exited"])
    assert found.verdicts[0].culprits[0].rank == 1


def test_nobody_is_to_blame_when_all_ranks_have_left_together() -> None:
    def left(*ago: float, code: int | None = None) -> Diagnosis:
        world = World()
        for rank, seconds in enumerate(ago):
            gone = {"gone_at": NOW - seconds, "exit_code": code}
            world.add(None, None, state="exited", process=gone, rank=rank)
        return judged(world)

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
    assert judged(world).state != "hung"


def training_in_a_thread(cpu_share: float) -> World:
    """All ranks' main threads join a thread that trains."""
    world = World()
    for rank in range(4):
        others = [("trainer", 4000 + rank * 10 + 5, c10d("all_reduce"), False)]
        world.add(situations.JOIN, FUTEX, sample={"others": others}, cpu_share=cpu_share)
    return world


def test_a_main_thread_that_waits_for_a_training_thread_is_not_the_measure() -> None:
    assert judged(training_in_a_thread(0.6)).state == "progressing"
    assert judged(training_in_a_thread(0.004)).state == "hung"


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
    worked: float | None, at: situations.Facts, ranks: int, state: str
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
    assert judged(world).state == state


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
    assert judged(world).state == state


def test_a_healthy_job_whose_ranks_all_pause_between_steps_is_progress() -> None:
    world = World()
    for _ in range(4):
        world.add(user("load_batch", 40), SLEEP, moved_at=NOW - 0.04)
    found = judged(world)
    assert (found.state, causes(found)) == ("progressing", [])


def test_a_node_that_tells_nothing_new_does_not_make_its_ranks_hang() -> None:
    # GIVEN a job that moved at the last reading of its node, which was forty seconds ago
    world = World()
    world.nodes["n1"] = Node("n1", "ready", last_seen=NOW - 40.0)
    world.waiters(1, moved_at=NOW - 41.0)
    for _ in range(3):
        world.add(user("load_batch", 40), SLEEP, moved_at=NOW - 41.0)
    assert judged(world).state != "hung"


def test_a_thread_that_runs_is_known_only_as_far_as_its_last_sample() -> None:
    # GIVEN a loop that was last sampled half a minute ago, twelve seconds after the first time
    world = World()
    world.waiters(3)
    rank = world.add(user("tune", 51), RUN)
    assert rank.sample is not None
    old = msgspec.structs.replace(rank.sample, at=NOW - 47.0)
    world.ranks[3] = msgspec.structs.replace(rank, sample=old)
    assert judged(world).state == "unknown"


def test_ranks_of_a_lost_node_do_not_hide_that_the_others_hang() -> None:
    world = World()
    world.nodes["n2"] = Node("n2", "lost", last_seen=NOW - 299.0, reason="no answer for 30 s")
    world.waiters(3)
    world.waiters(1, node="n2")
    assert judged(world).state == "hung"


@pytest.mark.parametrize("moved_at", [NOW - 300.0, NOW - 2.0])
def test_nothing_is_said_of_ranks_yet_to_be_sampled(moved_at: float) -> None:
    world = World()
    for _ in range(4):
        world.add(None, FUTEX, moved_at=moved_at)
    world.ranks = [msgspec.structs.replace(rank, sample=None) for rank in world.ranks]
    found = judged(world)
    assert (found.state, causes(found)) == ("unknown", [])


def looping(text: str = "while True:") -> Any:
    """A main thread that draws, in a loop around the call."""
    return (
        frame("draw", "train.py", 12, "return torch.randn(8)"),
        replace(frame("sample", "train.py", 21, "x = draw()"), within=((20, text),)),
        *situations.BASE,
    )


SHARED = "shared = set(one) & set(two)"


def scoring(
    outer: str = "for text in texts:", inner: str = "scores(text)", line: str = SHARED
) -> Any:
    """A main thread that is always met in the function it calls for one thing after the other."""
    train = replace(frame("train", "train.py", 40, inner), within=((30, STEPS), (39, outer)))
    called = replace(frame("score", "train.py", 12, line), within=())
    each = replace(train, name="train.<locals>.<genexpr>")
    return (called, each, train) if " for " in inner else (called, train)


STEPS = "while step < last:"


@pytest.mark.parametrize(
    ("stack", "waited", "lines", "state"),
    [
        (scoring(), 100.0, 3.0, "progressing"),
        (scoring("if texts:", "sum(score(one) for one in texts)"), 100.0, 3.0, "progressing"),
        (scoring("while texts:  # ends"), 100.0, 3.0, "progressing"),
        (scoring("for step in range(steps):"), 100.0, 3.0, "progressing"),
        (scoring("if texts:", "sum(score(i) for i in range(4_000))"), 100.0, 3.0, "progressing"),
        # It is at one line: what is called there may not return, or the next thing not come.
        (scoring(line="shared = pattern.match(one)"), 100.0, 70.0, "hung"),
        (scoring(line="for match in matches:"), 100.0, 70.0, "hung"),
        (scoring(line="total += one ** two"), 100.0, 70.0, "hung"),
        # Where nothing is called, it takes most of the time.
        (scoring(line="for other in graph[node]:"), 100.0, 70.0, "progressing"),
        (scoring("while texts:  # ends", line="if (one - two) > 3:"), 100.0, 70.0, "progressing"),
        (scoring(line="total += order[n % len(order)]"), 100.0, 70.0, "progressing"),
        (scoring(), 100.0, 70.0, "progressing"),
        (scoring(), 100.0, 20.0, "progressing"),
        (scoring(line="first = min(itertools.count(one))"), 100.0, 70.0, "hung"),
        (scoring("while texts:", line="if not seen[one]:"), 100.0, 3.0, "hung"),
        # These may never end.
        (scoring("while texts:"), 100.0, 3.0, "hung"),
        (scoring("while texts:", "sum(score(one) for one in texts)"), 100.0, 3.0, "hung"),
        (scoring("for n in itertools.count():"), 100.0, 3.0, "hung"),
        (scoring("for attempt in range(10**9):"), 100.0, 3.0, "hung"),
        (scoring("if texts:", "next(n for n in count() if score(n))"), 100.0, 3.0, "hung"),
        (scoring("if texts:"), 100.0, 3.0, "hung"),
        # Of a library nobody knows.
        ((frame("fit", "/lib/site-packages/x/y.py", 7), *scoring()), 100.0, 3.0, "hung"),
        # For so long it is not believed.
        (scoring(), 400.0, 3.0, "hung"),
    ],
)
def test_who_goes_from_line_to_line_in_loops_that_end_gets_on(
    stack: Any, waited: float, lines: float, state: str
) -> None:
    world = World()
    mine = replace(frame("train", "train.py", 50, "loss.backward()"), within=((30, STEPS),))
    for _ in range(3):
        backward = (*situations.BACKWARD[:3], mine)
        world.add(backward, FUTEX, moved_at=NOW - waited, left_at=NOW - waited)
    moves = {"same_since": NOW - lines, "gil": True}
    world.add(stack, RUN, moved_at=NOW, main_cpu_share=0.9, sample=moves)
    found = judged(world)
    assert found.state == state
    assert causes(found) == (["busy-in-python"] if state == "hung" else ["straggler"])
    if state == "progressing":
        how = "and goes from line to line" if lines < 5 else "in loops that come to their end"
        assert f", {how}; whether it gets on does not show" in found.verdicts[0].summary


def test_a_rank_whose_thread_was_met_without_a_frame_is_judged() -> None:
    world = World()
    for _ in range(3):
        world.add(situations.BACKWARD, FUTEX, moved_at=NOW - 100.0, left_at=NOW - 100.0)
    moves = {"same_since": NOW - 20.0, "gil": True}
    world.add((), RUN, moved_at=NOW, main_cpu_share=0.9, sample=moves)
    assert judged(world).state in ("progressing", "unknown", "hung")


@pytest.mark.parametrize(
    ("outer", "in_passing", "state"),
    [
        ("for text in texts:", True, "progressing"),
        ("while texts:", True, "hung"),
        # It is always met in there: whether that comes to an end nobody knows.
        ("for text in texts:", False, "hung"),
    ],
)
def test_who_is_met_in_a_library_in_passing_is_in_its_own_loops(
    outer: str, in_passing: bool, state: str
) -> None:
    world = World()
    mine = replace(frame("train", "train.py", 50, "loss.backward()"), within=((30, STEPS),))
    for _ in range(3):
        backward = (*situations.BACKWARD[:3], mine)
        world.add(backward, FUTEX, moved_at=NOW - 100.0, left_at=NOW - 100.0)
    stack = (frame("sort", "/lib/site-packages/numpy/fromnumeric.py", 7), *scoring(outer))
    moves = {"same_since": NOW - 3.0, "gil": True}
    rank = world.add(stack, RUN, moved_at=NOW, main_cpu_share=0.9, sample=moves)
    assert rank.sample is not None
    world.ranks[-1] = replace(rank, sample=replace(rank.sample, in_passing=in_passing))
    assert judged(world).state == state


def packing(line: str, body: str = "for row in pack(lengths):") -> Any:
    """A data set that packs, in a loop around the calls; its own is a generator's."""
    ours = ((58, "while True:"), (59, body))
    return (
        replace(frame("best", "train.py", 23, "return min(fits)"), within=()),
        replace(frame("pack", "train.py", 36, "row = best(n)"), within=((33, line), (35, PIECES))),
        replace(frame("Packed.__iter__", "train.py", 59, body), within=ours),
        frame("fetch", "/lib/site-packages/torch/utils/data/_utils/fetch.py", 33),
        replace(frame("train", "train.py", 40), within=((40, "for x in loader:"),)),
    )


PIECES = "for n in waiting:"


@pytest.mark.parametrize(
    ("stack", "since", "signs", "state"),
    [
        (packing("while waiting:"), 40.0, {}, "hung"),
        # It may be a generator, too, which gives something each time.
        (packing("while True:"), 40.0, {}, "progressing"),
        (packing("while waiting:"), 20.0, {}, "progressing"),
        (packing("while waiting:"), 40.0, {"io_moved_at": NOW - 5.0}, "progressing"),
        # Each thing may be packed by itself.
        (packing("while waiting:", "for row in rows: pack(row)"), 40.0, {}, "progressing"),
    ],
)
def test_who_stays_in_a_while_that_needs_no_memory_hangs(
    stack: Any, since: float, signs: dict[str, float], state: str
) -> None:
    if "pack(row)" in str(stack):
        stack = (*stack[:2], replace(stack[2], line=60), *stack[3:])
    world = World()
    for _ in range(3):
        mine = replace(frame("train", "train.py", 50), within=((40, "for x in loader:"),))
        backward = (*situations.BACKWARD[:3], mine)
        world.add(backward, FUTEX, moved_at=NOW - 100.0, left_at=NOW - 100.0)
    loops = (("train.py", "Packed.__iter__", 58), ("train.py", "pack", 33))
    moves = {"same_functions_since": NOW - 2.0, "same_since": NOW - 2.0, "gil": True}
    rank = world.add(stack, RUN, moved_at=NOW, main_cpu_share=0.9, sample=moves, **signs)
    assert rank.sample is not None
    told = tuple((stack[1].file, *one[1:], NOW - since) for one in loops)
    world.ranks[3] = replace(rank, sample=replace(rank.sample, loops=told))
    found = judged(world)
    assert found.state == state
    assert causes(found) == (["busy-in-python"] if state == "hung" else ["data-starved"])
    if state == "hung":
        assert "is in the loop at train.py:33 (`while" in found.verdicts[0].summary
        assert "its memory has not changed" in str(found.verdicts[0].evidence)


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
    found = judged(world)
    assert found.state == state
    assert causes(found) == (["busy-in-python"] if state == "hung" else ["straggler"])
    if state == "hung":
        assert found.hung_for_s == pytest.approx(waited)
        assert "the loop at train.py:20 (`while" in found.verdicts[0].summary


def test_a_loop_that_those_who_wait_are_in_as_well_is_the_training_loop() -> None:
    world = World()
    base = (replace(situations.MAIN, within=((70, "while True:"),)), situations.MODULE)
    for _ in range(3):
        stack = (*c10d("all_reduce")[:3], *base)
        world.add(stack, FUTEX, moved_at=NOW - 400.0, left_at=NOW - 400.0)
    moves = {"same_functions_since": NOW - 1.0}
    world.add((frame("load", "train.py", 5), *base), RUN, moved_at=NOW, sample=moves)
    assert judged(world).state == "progressing"


@pytest.mark.parametrize("ago", [1.0, 200.0])
def test_threads_that_were_at_work_when_last_seen_are_no_progress_now(ago: float) -> None:
    world = World()
    world.waiters(2)
    world.add(situations.JOIN, FUTEX, node="n2", cpu_share=0.2, main_cpu_share=0.2)
    world.nodes["n2"] = Node("n2", "slow", last_seen=NOW - ago)
    assert judged(world).state == ("progressing" if ago < 10.0 else "unknown")


def test_the_only_rank_seen_is_compared_with_none() -> None:
    world = World()
    world.waiters(1)
    (verdict,) = judged(world, world_size=2).verdicts
    assert verdict.summary.startswith("the only rank seen waits in all_reduce at ")
    assert "; there is none to compare it with, but WORLD_SIZE is 2: look on" in verdict.summary
