"""Ranks that wait in calls of several groups, or for sends that they have started."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.model.recorder.columns import trace_of
from hangtop_core.model.snapshot import Recorder
from hangtop_probe.recorder.columns import reduce
from support.build import NOW, World
from support.flight import Job
from support.situations import BACKWARD, FUTEX, c10d, frame, inside

if TYPE_CHECKING:
    from hangtop_core.diagnosis import Verdict
    from support.situations import Stack

LOOP = (50, "for step in range(steps):")


def first(*stacks: Stack) -> Verdict:
    world = World()
    for stack in stacks:
        world.add(stack, FUTEX)
    snapshot = world.snapshot()
    return diagnose(snapshot, snapshot.job(None), 30.0).verdicts[0]


def recorded(job: Job, *stacks: Stack) -> tuple[Verdict, ...]:
    world = World()
    for rank, stack in enumerate(stacks):
        trace = trace_of(reduce(job.dump(rank)), rank, "test")
        world.add(stack, FUTEX, recorder=Recorder(NOW, "server", trace=trace))
    snapshot = world.snapshot()
    return diagnose(snapshot, snapshot.job(None), 30.0).verdicts


def blamed(one: Verdict) -> list[int | None]:
    return [culprit.rank for culprit in one.culprits]


def call(function: str, at: int, group: str = "", *more: tuple[int, str]) -> Stack:
    """In an all_reduce of a function that line ``at`` of the training loop calls."""
    stack = c10d("all_reduce", at=at)
    named = f", group={group}" if group else ""
    own = frame(function, "train.py", at - 40, f"dist.all_reduce(x{named})")
    place = next(i for i, one in enumerate(stack) if one.file.endswith("train.py"))
    mine = replace(stack[place], within=(LOOP, *more))
    return (*stack[:place], replace(own, within=()), mine, *stack[place + 1 :])


def test_who_is_furthest_back_waits_for_a_member_of_its_group() -> None:
    """Rank 3 left out the call of its tensor group; 0 waits for 2 in the data group."""
    norm = call("clip", 62)
    one = first(call("sync", 61, "mesh.dp"), norm, call("backward", 60, "mesh.tp"), norm)
    assert (one.cause, blamed(one), one.confidence) == ("missing-collective", [3], 0.55)
    assert "for members of `mesh.tp` alone, and is furthest back" in one.summary
    assert "rank 3, if such groups are of neighbours (else rank 1)" in one.summary


def test_who_is_past_a_backward_in_a_call_of_another_group_did_not_reduce() -> None:
    back = inside(BACKWARD, LOOP)
    one = first(back, back, call("compute", 62, "self.group"))
    assert (one.cause, blamed(one), one.confidence) == ("missing-collective", [2], 0.75)
    assert "is past that: it waits in all_reduce" in one.summary
    assert "for members of `self.group`" in one.summary
    assert "reduced none, or not all, of the gradients that ranks 0-1 wait for" in one.summary
    assert any("find_unused_parameters" in str(step) for step in one.next_steps)


@pytest.mark.parametrize(
    ("odd", "back"),
    [
        # the group of all, maybe that of DistributedDataParallel; further up; under a condition
        (call("compute", 62), 2),
        (call("compute", 62, "None"), 2),
        (call("compute", 62, "dist.group.WORLD"), 2),
        (call("compute", 55, "self.group"), 2),
        (call("compute", 62, "self.group", (60, "if step % 9 == 8:")), 2),
        (call("compute", 62, "self.group"), 1),  # either of two
    ],
)
def test_who_may_not_be_past_a_backward_is_in_another_operation(odd: Stack, back: int) -> None:
    one = first(*[inside(BACKWARD, LOOP)] * back, odd)
    assert one.cause == "mismatched-collective"


def test_many_that_are_behind_are_no_majority() -> None:
    back = [call("backward", 60, "self.tensor_group")] * 3
    middle = [call("sync", 61, "self.data_group")] * 3
    norm = call("clip", 62)
    one = first(*back, norm, *middle, norm)
    assert (one.cause, blamed(one)) == ("missing-collective", [3])


def test_groups_of_no_neighbours_leave_several() -> None:
    norm = call("clip", 62)
    one = first(
        call("sync", 60, "self.replicas"), call("gather", 61, "self.shards"), norm, norm, norm, norm
    )
    assert one.cause == "mismatched-collective"  # that would be more than half of them
    stacks = [call("sync", 60, "self.replicas")] * 2 + [call("gather", 61, "self.shards")] * 2
    one = first(*stacks, norm, norm)
    assert (one.cause, blamed(one), one.confidence) == ("missing-collective", [4, 5], 0.45)


def test_calls_of_one_group_are_alternatives() -> None:
    one = first(call("a", 60), call("b", 61), call("c", 62), call("c", 62))
    assert one.cause == "mismatched-collective"


def test_who_is_in_a_branch_of_its_own_is_blamed_before_who_waits_for_it() -> None:
    plan = call("plan", 63, "group", (62, "if step % 6 == 0:"))
    norm = call("clip", 61)
    one = first(call("forward", 60, "mesh.tp"), plan, norm, norm)
    assert (one.cause, blamed(one)) == ("mismatched-collective", [1])


EMPTY = (60, "past: if expert.numel() == 0: return tokens")


def test_who_turned_back_before_a_call_of_its_group_left_it_out() -> None:
    behind, reduce = call("forward", 60, "self.group", EMPTY), call("sync", 61)
    behind = tuple(replace(f, within=(LOOP,)) if f.name != "forward" else f for f in behind)
    behind = tuple(replace(f, within=(EMPTY,)) if f.name == "forward" else f for f in behind)
    one = first(behind, behind, behind, reduce)
    assert (one.cause, blamed(one), one.confidence) == ("missing-collective", [3], 0.75)
    assert (
        "rank 3 is further on in the program, in a call of another group, and wait" in one.summary
    )
    said = "Ranks 0-2 are past `if expert.numel() == 0: return tokens` (train.py:60), where rank 3"
    assert said in one.summary
    # a line that goes on may name the same group
    long = tuple(replace(f, source="dist.all_reduce(") if f.name == "sync" else f for f in reduce)
    assert first(behind, behind, behind, long).cause == "mismatched-collective"
    # one group: it is another operation of that
    same = call("sync", 61, "self.group")
    assert first(behind, behind, behind, same).cause == "mismatched-collective"


@pytest.mark.parametrize(
    ("mine", "theirs", "cause"),
    [
        ("if axis == 'tp':", "else: if axis == 'tp':", "group-order-inversion"),
        ("if axis == 'tp':", "elif axis == 'dp':", "group-order-inversion"),
        ("if axis == 'tp':", "", "mismatched-collective"),
        ("if axis == 'tp':", "if axis == 'dp':", "mismatched-collective"),
    ],
)
def test_two_halves_in_two_groups_wait_for_one_another(mine: str, theirs: str, cause: str) -> None:
    second = 60 if theirs.startswith("else") else 62
    tensor = call("over_tensor", 61, 'mesh.get_group("tp")', (60, mine))
    data = call("over_data", 63, 'mesh.get_group("dp")', *([(second, theirs)] if theirs else []))
    one = first(data, tensor, tensor, data)
    assert one.cause == cause
    if cause == "group-order-inversion":
        assert blamed(one) == []
        assert "ranks 1-2 wait in all_reduce at train.py:21 (over_tensor) for members of `mesh" in (
            one.summary
        )
    # who is alone is blamed
    one = first(data, tensor, data, data)
    assert (one.cause, blamed(one)) == ("mismatched-collective", [1])


def test_two_functions_that_one_line_calls_are_alternatives() -> None:
    tensor, data = (call(f"over_{x}", 61, f"self.{x}_group") for x in ("tensor", "data"))
    assert first(data, tensor, tensor, data).cause == "group-order-inversion"
    same = call("over_tensor", 61, "self.data_group")
    assert first(data, same, same, data).cause == "mismatched-collective"


MADE = (28, "made: self.pending = dist.batch_isend_irecv(ops)")


def waits(*more: tuple[int, str]) -> Stack:
    own = frame("Ring.wait", "train.py", 33, "request.wait()")
    train = replace(frame("train", "train.py", 60), within=(LOOP,))
    return (replace(own, within=more), train)


@pytest.mark.parametrize("made", [True, False])
def test_handles_of_sends_are_waited_for_in_a_chain(made: bool) -> None:
    ring = waits(*([MADE] if made else []))
    one = first(call("reduce", 62), ring, ring, ring)
    assert one.cause == ("p2p-chain" if made else "mismatched-collective")
    assert blamed(one) == [0]
    told = "in sends and receives (`self.pending = dist.batch_isend_irecv(ops)`, train.py:28)"
    assert (told in one.summary) == made


def test_sends_that_the_recorder_does_not_hold_are_under_way_all_the_same() -> None:
    job = Job(4, with_frames=False, backend="gloo").call("all_reduce")
    job.call("all_reduce", [0], done=False)
    ring = waits(MADE)
    one = recorded(job, call("reduce", 62), ring, ring, ring)[0]
    assert (one.cause, blamed(one)) == ("p2p-chain", [0])


def test_who_reduced_no_gradients_is_told_by_earlier_rounds() -> None:
    job = Job(3, with_frames=False, backend="gloo")
    for _ in range(4):
        job.call("all_reduce", sizes=[[7]]).call("all_reduce", sizes=[[9]]).call("reduce")
    job.call("all_reduce", [0, 2], sizes=[[7]], done=False)
    job.call("all_reduce", [0, 2], sizes=[[9]], done=False).call("reduce", [1], done=False)
    found = recorded(job, BACKWARD, c10d("reduce", at=70), BACKWARD)
    (one,) = [one for one in found if one.cause == "mismatched-collective"]
    assert blamed(one) == [1]
    assert "Rank 1 issued 2 operations less before reduce than the last two times" in one.summary
    assert "its backward reduced none of these gradients" in one.summary


def test_a_try_that_a_rank_is_past_may_have_swallowed_an_exception() -> None:
    body = (60, "loss = train_step(batch)")
    within = call("step", 60)
    past = tuple(
        replace(one, beside=(body,)) if one.line == 66 and one.within else one
        for one in call("report", 66, "", (65, "if step % 10 == 0:"))
    )
    one = first(within, within, past)
    assert "ranks 0-1 are in the `try` that begins with `loss = train_step(batch)`" in (
        one.summary[0].lower() + one.summary[1:]
    ).replace("Ranks", "ranks")
    assert "rank 2 past it: it may have caught an exception there" in one.summary
