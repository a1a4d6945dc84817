"""What rules ask for, how that stands, and what C frames decide once they are there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from hangtop_core.analysis import native
from hangtop_core.analysis.verdict.needs import MOST, STALE_S
from hangtop_core.analysis.verdict.rules import RULES
from hangtop_core.model.descriptors import Descriptor, Socket
from hangtop_core.model.snapshot import (
    DescriptorTable,
    Fact,
    Failure,
    Frame,
    Node,
    Recorder,
    RecorderWay,
)
from hangtop_core.report.diagnosis import diagnosis_text
from support.build import HUNG_SINCE, NOW, World, judged
from support.situations import FUTEX, PIPE_WRITE, POLL, RUN, SLEEP, user

if TYPE_CHECKING:
    from hangtop_core.diagnosis import Diagnosis, Need

LIBC = "/usr/lib/x86_64-linux-gnu/libc.so.6"
OWN = user("fill_buffer", 26, "library.take_buffer()")


def c_frame(name: str, file: str = LIBC, line: int = 0) -> Frame:
    return Frame(name, file, file.rpartition("/")[2], line, native=True)


LOCKED = (
    c_frame("0x7fb2330a412b"),
    c_frame("pthread_mutex_lock"),
    c_frame("take_buffer", "/src/pool.c", 3),
    c_frame("ffi_call", "/usr/lib/libffi.so.8.1.2"),
    c_frame("_ctypes_callproc", "/src/Modules/_ctypes/callproc.c", 1262),
)


def need(found: Diagnosis, kind: str) -> Need:
    return next(one for one in found.needs if one.kind == kind)


def table(remote: str, at: float = NOW, peer_pid: int | None = None) -> DescriptorTable:
    peer = Socket("tcp", "ESTABLISHED", "10.0.0.1:5", remote, peer_pid=peer_pid)
    return DescriptorTable(at, (Descriptor(11, "socket", "socket:[1]", socket=peer),))


def natively(world: World, stack: tuple[Frame, ...], facts: Any) -> None:
    one = world.add(stack, facts)
    assert one.sample is not None
    sample = msgspec.structs.replace(one.sample, mode="native")
    world.ranks[-1] = msgspec.structs.replace(one, sample=sample)


# What is asked for


def test_a_rank_that_polls_is_asked_for_descriptors_and_they_name_the_service() -> None:
    world = World()
    world.waiters(3)
    world.add(user("fetch", 21), POLL)
    before = judged(world)
    assert before.verdicts[0].cause == "missing-collective"
    wanted = need(before, "descriptors")
    assert (wanted.state, wanted.rank) == ("wanted", 3)
    assert "to whom the connections lead" in wanted.why
    # WHEN they come
    world.ranks[-1] = msgspec.structs.replace(world.ranks[-1], descriptors=table("10.9.9.9:443"))
    after = judged(world)
    assert after.verdicts[0].cause == "remote-service-wait"
    assert "10.9.9.9:443" in after.verdicts[0].summary
    assert need(after, "descriptors").state == "answered"


def test_one_table_speaks_for_all_ranks_that_poll_in_the_same_line() -> None:
    world = World()
    world.waiters(3)
    world.add(user("fetch", 21), POLL)
    world.add(user("fetch", 21), POLL, descriptors=table("10.9.9.9:443"))
    (verdict,) = judged(world).verdicts
    assert [one.rank for one in verdict.culprits] == [3, 4]
    assert verdict.cause == "remote-service-wait"


def test_a_connection_to_another_rank_is_no_service() -> None:
    world = World()
    world.waiters(3)
    other = world.ranks[0].process.pid
    world.add(user("fetch", 21), POLL, descriptors=table("10.9.9.9:443", peer_pid=other))
    assert judged(world).verdicts[0].cause == "missing-collective"


def test_an_old_table_is_wanted_again() -> None:
    world = World()
    world.waiters(3)
    old = min(HUNG_SINCE, NOW - STALE_S) - 1.0
    one = DescriptorTable(old, (Descriptor(1, "pipe", "pipe:[7]"),))
    world.add(user("log", 9), PIPE_WRITE, descriptors=one)
    assert need(judged(world), "descriptors").state == "wanted"
    failed = DescriptorTable(NOW, failure=Failure("denied", "another user's"))
    world.ranks[-1] = msgspec.structs.replace(world.ranks[-1], descriptors=failed)
    stands = need(judged(world), "descriptors")
    assert (stands.state, stands.told) == ("not possible", "another user's")


def test_c_frames_pause_a_rank_so_they_are_only_offered() -> None:
    world = World()
    world.waiters(3)
    world.add(OWN, FUTEX)
    found = judged(world)
    stands = need(found, "native stacks")
    command = f"hangtop dump --pid {world.ranks[-1].process.pid} --native"
    assert (stands.state, stands.told, stands.key) == ("needs consent", command, "c")
    text = " ".join(diagnosis_text(found, 400).split())
    assert f"by hangtop diagnose --allow-pause, key c, or: {command}" in text


def test_c_frames_that_the_node_does_not_allow_say_why() -> None:
    world = World()
    world.nodes["n1"] = Node(
        "n1", "ready", capabilities={"ptrace": Fact(False, why="ptrace_scope is 3")}
    )
    world.waiters(3)
    world.add(OWN, FUTEX)
    stands = need(judged(world), "native stacks")
    assert (stands.state, stands.told) == ("not possible", "ptrace_scope is 3")


@pytest.mark.parametrize(
    ("way", "option"),
    [(("pipe", "there"), "--trigger"), (("inject", "not-allowed"), "--allow-inject")],
)
def test_a_recorder_that_the_rank_would_have_to_write_is_only_offered(
    way: tuple[str, str], option: str
) -> None:
    world = World()
    world.waiters(3)
    failure = Failure("missing", "no way")
    world.add(
        user("cool_down", 41),
        SLEEP,
        recorder=Recorder(NOW, ways=(RecorderWay(*way),), failure=failure),
    )
    stands = need(judged(world), "recorder")
    assert stands.state == "needs consent"
    assert stands.told.endswith(option)


def test_why_a_rank_left_is_asked_of_its_logs_and_its_kernel() -> None:
    world = World()
    world.nodes["n1"] = Node(
        "n1", "ready", capabilities={"kernel log": Fact(False, why="dmesg_restrict is 1")}
    )
    world.waiters(3)
    ended = {"gone_at": NOW - 60, "exit_code": 1, "outputs": ("/logs/3.log",)}
    world.add(None, None, state="exited", process=ended)
    found = judged(world)
    assert need(found, "logs").state == "wanted"
    stands = need(found, "kernel log")
    assert (stands.state, stands.told) == ("not possible", "dmesg_restrict is 1")


def unseen_for(seconds: float, state: str = "unknown") -> Diagnosis:
    """Three wait, and a rank that polls was last looked at so long ago."""
    world = World()
    world.waiters(3)
    one = world.add(user("wait_for_file", 40, "time.sleep(0.5)"), SLEEP, moved_at=NOW - 0.2)
    assert one.sample is not None
    sample = msgspec.structs.replace(one.sample, at=NOW - seconds)
    world.ranks[-1] = msgspec.structs.replace(one, sample=sample)
    found = judged(world)
    assert found.state == state
    return found


def test_who_keeps_a_job_from_being_called_hung_is_looked_at_again() -> None:
    # WHEN a crowded node has no time for stacks of what runs
    wanted = need(unseen_for(40.0), "stacks")
    assert (wanted.state, wanted.rank) == ("wanted", 3)
    assert "whether it still is where it was" in wanted.why
    # and not where that would decide nothing
    later = unseen_for(20.0, "hung")
    assert "stacks" not in {one.kind for one in later.needs}


def test_a_thousand_suspects_are_few_needs() -> None:
    world = World()
    world.waiters(2)
    for number in range(1000):
        world.add(user(f"odd_{number % 50}", number % 50), FUTEX, node=f"n{number // 8}")
    assert 0 < len(judged(world).needs) <= MOST


def test_who_gets_on_is_asked_for_nothing() -> None:
    world = World()
    for _ in range(4):
        world.add(user("step", 5), RUN, worked_at=NOW, sample={"same_since": NOW - 0.5})
    found = judged(world)
    assert found.state != "hung"
    assert not found.needs


def test_every_rule_says_what_its_needs_would_tell() -> None:
    asking = [rule for rule in RULES if rule.needs]
    assert len(asking) > 10
    assert all(one.why and one.why[0].islower() for rule in asking for one in rule.needs)


# What C frames decide


def test_a_lock_of_c_code_is_told_from_a_skipped_collective() -> None:
    world = World()
    world.waiters(3)
    world.add(OWN, FUTEX)
    assert judged(world).verdicts[0].cause == "missing-collective"
    world.ranks.pop()
    natively(world, (*LOCKED, *OWN), FUTEX)
    found = judged(world)
    assert found.verdicts[0].cause == "lock-wait"
    assert "a lock of C code, in take_buffer (pool.c:3)," in found.verdicts[0].summary
    assert need(found, "native stacks").state == "answered"


def test_a_rank_that_spins_in_c_is_told_with_the_function() -> None:
    world = World()
    world.waiters(3)
    natively(world, (c_frame("spin", "/src/ring.c", 8), *OWN), RUN)
    (verdict,) = judged(world).verdicts
    assert verdict.cause == "busy-in-python"
    assert "is busy in spin (ring.c:8), called at train.py:26" in verdict.summary


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (("sched_yield", "0x7f", "cudaStreamSynchronize"), "work-wait"),
        (("pthread_cond_timedwait", "take_gil", "PyEval_RestoreThread"), "gil"),
        (("sem_wait", "PyThread_acquire_lock_timed"), "lock"),
        (("pthread_cond_wait", "c10d::TCPStore::wait"), "store"),
        (("pthread_cond_wait", "c10d::ProcessGroupGloo::AsyncWork::wait"), "work-wait"),
        (("pthread_mutex_lock", "c10d::ProcessGroupNCCL::WorkNCCL::wait"), "work-wait"),
        (("sem_wait", "pool_take"), "lock"),
        (("compute", "blas_thread"), None),
    ],
)
def test_what_c_frames_wait_for(names: tuple[str, ...], kind: str | None) -> None:
    told = native.decided([c_frame(name) for name in names])
    assert (told[0] if told else None) == kind


def test_the_function_that_is_named_is_none_of_the_plumbing() -> None:
    assert native.called(LOCKED) == "in take_buffer (pool.c:3)"
    assert native.called([c_frame("0x7f"), c_frame("poll")]) == "in poll (libc.so.6)"
    assert native.called([c_frame("0x7f")]) == ""
