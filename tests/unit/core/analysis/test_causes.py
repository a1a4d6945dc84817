"""One situation per cause: the guilty rank comes first, with the exact cause, never the victims."""

from __future__ import annotations

import pytest

from hangtop_core.model.snapshot import Failure, Node
from support import situations
from support.build import HUNG_SINCE, NOW, World, judged, recorder
from support.situations import (
    CHILD,
    COMPILE,
    DESTROY,
    FUTEX,
    PIPE_READ,
    QUEUE,
    RECV,
    SAVE,
    SLEEP,
    STOP,
    TRACED,
    WAITPID,
    c10d,
    user,
)
from support.verdicts import blamed, hung, told


def test_a_rank_that_sleeps_in_user_code_has_skipped_the_collective() -> None:
    # GIVEN three ranks in an all_reduce, and one asleep in a function of its own
    world = World()
    world.waiters(2)
    world.add(user("cool_down", 41, "time.sleep(3600)"), SLEEP)
    world.waiters(1)
    # WHEN the job is diagnosed
    found = judged(world)
    # THEN that rank is to blame, the others are its victims, and the sentence is concrete
    verdict = found.verdicts[0]
    assert (found.state, verdict.cause, blamed(verdict)) == ("hung", "missing-collective", [2])
    assert verdict.victims == (0, 1, 3)
    assert len(found.verdicts) == 1
    assert found.hung_for_s == pytest.approx(300.0)
    assert "train.py:41 (cool_down)" in verdict.summary
    assert "all_reduce at train.py:56 (train_step)" in verdict.summary
    assert "5:00" in verdict.summary
    assert verdict.confidence >= 0.9


def test_the_recorder_names_the_sequence_number_that_is_missing() -> None:
    world = World()
    for rank in range(4):
        late = rank == 2
        ops = ["all_reduce"] * (16 if late else 17)
        stack = user("cool_down", 41) if late else c10d("all_reduce")
        world.add(stack, SLEEP if late else FUTEX, recorder=recorder(ops, completed=16))
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("missing-collective", [2])
    assert "all_reduce #17 on group default_pg" in verdict.summary
    assert any(one.source == "flight" for one in verdict.evidence)


def test_ddp_ranks_wait_inside_backward_without_a_frame_of_c10d() -> None:
    world = World()
    world.waiters(3, situations.BACKWARD)
    world.add(user("inspect_outlier", 88), SLEEP)
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("missing-collective", [3])
    assert "backward" in verdict.summary


def test_an_asynchronous_collective_is_waited_for_on_a_line_of_user_code() -> None:
    # GIVEN three ranks on one line that cannot be read, asleep on a futex, and one elsewhere
    world = World()
    world.waiters(3, user("train_step", 55))
    world.add(user("train_step", 53), SLEEP)
    # THEN the line of the majority is a wait for communication
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("missing-collective", [3])
    assert verdict.victims == (0, 1, 2)


@pytest.mark.parametrize("with_recorder", [False, True])
def test_different_operations_blame_the_minority(with_recorder: bool) -> None:
    world = World()
    for rank in range(4):
        op = "broadcast" if rank == 1 else "all_reduce"
        ops = ["all_reduce"] * 6 + [op]
        said = recorder(ops, completed=6) if with_recorder else None
        world.add(c10d(op, at=70 if rank == 1 else 56), FUTEX, recorder=said)
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("mismatched-collective", [1])
    assert verdict.victims == (0, 2, 3)
    assert ("#7" in verdict.summary) == with_recorder
    assert verdict.confidence == (0.95 if with_recorder else 0.8)


def test_two_halves_in_different_operations_are_told_with_little_confidence() -> None:
    world = World()
    world.waiters(2, c10d("all_reduce", at=118))
    world.waiters(2, c10d("all_reduce", at=119))
    verdict = hung(world)
    assert verdict.cause == "mismatched-collective"
    assert verdict.confidence < 0.5


def test_a_stopped_rank_is_named_although_it_gives_no_stack() -> None:
    world = World()
    world.waiters(3)
    failure = Failure("stopped", "it is stopped; only a non-blocking sample is safe")
    world.add(None, STOP, sample={"failure": failure})
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("rank-stopped", [3])
    assert verdict.next_steps == ("kill -CONT 4030",)


def test_a_stopped_rank_needs_no_long_watch() -> None:
    # GIVEN waiters that have waited eight seconds only
    world = World()
    world.waiters(3, moved_at=NOW - 8.0)
    world.add(c10d("all_reduce"), STOP, moved_at=NOW - 9.0)
    found = judged(world)
    assert found.state == "hung"
    assert found.verdicts[0].cause == "rank-stopped"


def test_a_rank_held_by_a_debugger_names_the_debugger() -> None:
    world = World()
    world.waiters(3)
    world.add(c10d("all_reduce"), TRACED, process={"tracer_pid": 777, "tracer": "gdb"})
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("rank-traced", [3])
    assert "gdb (pid 777)" in verdict.summary


def test_a_debugger_of_another_container_is_not_seen() -> None:
    world = World()
    world.waiters(3)
    world.add(c10d("all_reduce"), TRACED)
    verdict = hung(world)
    assert "held by a debugger that is not seen from here, which traces it" in verdict.summary
    # `kill 0` would end whoever pastes it.
    assert verdict.next_steps == (
        "look for the debugger outside of the container that this rank is in",
    )
    assert "pid 0" not in str(verdict)


def test_a_rank_that_runs_under_strace_is_told_as_that_and_not_traced_twice() -> None:
    world = World()
    world.waiters(3)
    world.add(user("save", 9), SLEEP, process={"tracer_pid": 777, "tracer": "strace"})
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("missing-collective", [3])
    assert "strace (pid 777) traces it" in told(verdict)
    steps = " ".join(verdict.next_steps)
    assert "ps -o pid,user,etime,args -p 777" in steps
    assert "strace -f" not in steps
    assert "--native" not in steps
    (said,) = (one.looked_at for one in judged(world).ruled_out if "rank-traced" in one.causes)
    assert said.endswith("; strace (pid 777) traces 1, which run")


def test_a_frozen_cgroup() -> None:
    world = World()
    world.waiters(3)
    world.add(c10d("all_reduce"), FUTEX, process={"frozen": True, "cgroup": "/job_1"})
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("cgroup-frozen", [3])
    assert "/job_1" in told(verdict)


@pytest.mark.parametrize(
    ("stack", "facts", "cause"),
    [
        (DESTROY, FUTEX, "teardown"),
        (COMPILE, FUTEX, "compiling"),
        (SAVE, ("S", "poll_schedule_timeout", "poll", None, None), "checkpoint-slow"),
        (situations.inline("decode", 70), SLEEP, "data-starved"),
    ],
)
def test_other_places_a_rank_may_be(
    stack: situations.Stack, facts: situations.Facts, cause: str
) -> None:
    world = World()
    world.waiters(3)
    world.add(stack, facts)
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == (cause, [3])


def test_all_ranks_receive_and_none_sends() -> None:
    world = World()
    world.waiters(2, RECV)
    assert hung(world).cause == "p2p-deadlock"


def test_a_rank_that_receives_elsewhere_waits_for_those_that_stand_together() -> None:
    world = World()
    for line, source in ((61, "dist.recv(x, src=1 - rank)"),) * 2 + ((30, "dist.recv(x, src=1)"),):
        world.add((c10d("recv", 2799, line)[0], *situations.user("step", line, source)), FUTEX)
    (verdict,) = judged(world).verdicts
    assert (verdict.cause, blamed(verdict)) == ("p2p-deadlock", [0, 1])
    assert verdict.victims == (2,)


def test_two_that_receive_in_different_lines_while_all_others_are_in_one_collective() -> None:
    world = World()
    world.waiters(4)
    for line in (61, 71):
        world.add(c10d("recv", 2799, line), FUTEX)
    (verdict,) = judged(world).verdicts
    assert (verdict.cause, blamed(verdict)) == ("p2p-deadlock", [4, 5])
    assert verdict.confidence == 0.7
    assert "rank 5 waits in recv at train.py:71 (train_step), and nobody is in a send" in (
        verdict.summary
    )


def test_of_ranks_that_receive_from_nobody_knows_whom_none_is_told_from_the_others() -> None:
    world = World()
    world.waiters(2, RECV)
    world.waiters(1, c10d("recv", 2799, 30))
    (verdict,) = judged(world).verdicts
    assert (verdict.cause, blamed(verdict)) == ("p2p-deadlock", [0, 1, 2])
    assert "which of them wait for each other is not known" in verdict.summary


def test_all_in_the_same_call_is_unknown_and_says_what_was_ruled_out() -> None:
    world = World()
    world.waiters(4)
    verdict = hung(world)
    assert verdict.cause == "unknown"
    assert verdict.culprits == ()
    assert "ruled out" in verdict.summary


@pytest.mark.parametrize(("shell", "fix"), [(None, "sudo hangtop"), ("ssh n1", "hangtop --sudo")])
def test_the_one_rank_without_a_stack_is_suspected(shell: str | None, fix: str) -> None:
    world = World()
    world.nodes["n1"] = Node("n1", state="ready", shell=shell)
    world.waiters(3)
    failure = Failure("denied", "ptrace is not permitted", "sudo hangtop")
    world.add(None, ("S", None, None, None, None), sample={"failure": failure})
    found = judged(world)
    assert found.verdicts[0].cause == "unknown"
    assert blamed(found.verdicts[0]) == [3]
    spot = found.blind_spots[0]
    assert (spot.what, spot.ranks, spot.why) == ("stacks", (3,), "ptrace is not permitted")
    assert spot.fix == fix


def test_without_any_stack_the_kernel_still_names_who_is_not_in_the_majority() -> None:
    world = World()
    failure = Failure("missing", "py-spy is not installed", "pip install py-spy")
    for rank in range(4):
        world.add(None, PIPE_READ if rank == 1 else FUTEX, sample={"failure": failure})
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("io-wait", [1])
    assert verdict.confidence < 0.7


def test_independent_faults_are_listed_apart_best_first() -> None:
    world = World()
    world.waiters(5)
    world.add(QUEUE, FUTEX)
    world.add(c10d("all_reduce"), STOP)
    found = judged(world)
    assert [one.cause for one in found.verdicts] == ["rank-stopped", "queue-wait"]
    assert [blamed(one) for one in found.verdicts] == [[6], [5]]


def test_several_ranks_in_one_trouble_make_one_verdict() -> None:
    world = World()
    world.waiters(4)
    for _ in range(3):
        world.add(c10d("all_reduce"), STOP, moved_at=HUNG_SINCE)
    found = judged(world)
    assert [blamed(one) for one in found.verdicts] == [[4, 5, 6]]


def test_foreign_text_cannot_reach_a_terminal() -> None:
    world = World()
    world.waiters(3)
    rank = world.add(CHILD, WAITPID)
    child = world.process(
        4999, SLEEP, role="subprocess", ppid=rank.process.pid, cmdline=("\x1b]0;x\x07rm",)
    )
    world.give_children(rank, [(child, None)])
    assert "\x1b" not in told(hung(world))
