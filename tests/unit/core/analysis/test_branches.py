"""Who waits where in loops and conditions, as the program's file has them, and by which callers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from hangtop_core.analysis.verdict.branches import branch
from hangtop_core.analysis.verdict.case import Case
from hangtop_core.analysis.verdict.engine import diagnose
from support.build import World, one_elsewhere
from support.situations import (
    BACKWARD,
    FUTEX,
    INIT,
    LOOP,
    POLL,
    QUEUE,
    SLEEP,
    c10d,
    frame,
    inside,
    user,
)

if TYPE_CHECKING:
    from hangtop_core.diagnosis import Diagnosis
    from support.situations import Stack

FIRST = (64, "if rank == 0:")


def run(world: World) -> Diagnosis:
    snapshot = world.snapshot()
    return diagnose(snapshot, snapshot.job(None), 30.0)


def test_a_collective_under_a_condition_on_the_rank_is_told_with_its_line() -> None:
    barrier = inside(c10d("barrier", 5356, 66), LOOP, FIRST)
    found = one_elsewhere(barrier, inside(BACKWARD, LOOP))
    first = found.verdicts[0]
    assert first.cause == "rank-conditional-collective"
    assert [one.rank for one in first.culprits] == [2]
    assert "under `if rank == 0:` (train.py:64), where ranks 0-1 do not come" in first.summary
    assert "uneven-inputs" not in [one.cause for one in found.verdicts]


def test_who_evaluates_alone_under_a_condition_has_not_got_more_batches() -> None:
    evaluates = inside(c10d("all_gather", at=66), FIRST, (65, "for x in val_loader:"))
    barrier = inside(c10d("barrier", 5356, 70))
    found = one_elsewhere(evaluates, barrier)
    assert found.verdicts[0].cause == "rank-conditional-collective"
    assert "uneven-inputs" not in [one.cause for one in found.verdicts]


def test_the_condition_may_be_around_a_caller_and_be_its_else() -> None:
    helper = frame("mean", "metrics.py", 9)
    stack = inside(c10d("all_reduce", 3252, 66), LOOP, (60, "else: if not is_main_process():"))
    stack = (*stack[:2], replace(helper, within=()), *stack[2:])
    found = one_elsewhere(stack, inside(BACKWARD, LOOP))
    assert found.verdicts[0].cause == "rank-conditional-collective"
    assert "the `else` of `if not is_main_process():` (train.py:60)" in found.verdicts[0].summary


def test_where_each_rank_has_its_own_part_of_a_condition_none_is_blamed_for_being_in_it() -> None:
    learner = inside(c10d("recv", 2799, 63), (140, "if rank == LEARNER:"))
    reference = inside(c10d("broadcast", 2950, 129), (142, "elif rank == REFERENCE:"))
    actor = inside(c10d("recv", 2799, 108), (144, "else: elif rank == REFERENCE:"))
    for last, blamed in ((actor, False), (inside(BACKWARD), True)):
        world = World()
        for stack in (learner, reference, last, last):
            world.add(stack, FUTEX)
        causes = [one.cause for one in run(world).verdicts]
        assert ("rank-conditional-collective" in causes) is blamed, causes


@pytest.mark.parametrize(
    ("block", "told"),
    [
        ((60, "past: if rank != 0: return"), "past `if rank != 0: return` (train.py:60)"),
        ((60, "past: if not self.is_main: continue"), "past `if not self.is_main: continue`"),
        ((60, "if verbose:  # verbose = rank == 0"), "under `if verbose:` with `verbose = rank =="),
        (
            (60, "if log is not None:  # log = Log(a=1) if main() else None"),
            "under `if log is not None:` with `log = Log(a=1) if main() else None` (train.py:60)",
        ),
        (
            (60, "past: if self.log is None: return  # if is_main(): log = Log(a=1)"),
            "past `if self.log is None: return` with `if is_main(): log = Log(a=1)` (train.py:60)",
        ),
        (
            (60, "past: if not loud: return 1  # loud=rank == 0"),
            "past `if not loud: return 1` with `loud=rank == 0`",
        ),
        (
            (66, "at: loud and dist.barrier()  # loud = rank == 0"),
            "in `loud and dist.barrier()` with `loud = rank == 0` (train.py:66)",
        ),
        ((60, "@rank_zero_only"), "under `@rank_zero_only` (train.py:60)"),
        ((60, "@master_only"), "under `@master_only`"),
        ((60, "@accelerator.on_process(process_index=1)"), "under `@accelerator.on_process(proc"),
        ((60, "@accelerator.on_main_process"), "under `@accelerator.on_main_process`"),
        ((66, "at: rank == 0 and dist.barrier()"), "in `rank == 0 and dist.barrier()`"),
        ((66, "at: x = dist.barrier() if is_main() else 0"), "in `x = dist.barrier() if is_main()"),
        ((66, "at: elif self.rank or dist.barrier(g):"), "in `elif self.rank or dist.barrier(g):`"),
        ((60, "if self.master and step % 10 == 0:"), "under `if self.master and step % 10 == 0:`"),
        ((60, "if args.local_rank in (-1, 0):"), "under `if args.local_rank in (-1, 0):`"),
    ],
)
def test_other_ways_to_ask_for_the_rank(block: tuple[int, str], told: str) -> None:
    barrier = inside(c10d("barrier", 5356, 66), LOOP, block)
    first = one_elsewhere(barrier, inside(BACKWARD, LOOP)).verdicts[0]
    assert first.cause == "rank-conditional-collective"
    assert told in first.summary


def test_what_the_first_process_does_while_others_wait_for_it() -> None:
    # GIVEN a rank inside of `with x.main_process_first():`, for which the others wait there
    held = (60, "with accelerator.main_process_first():")
    barrier = tuple(
        replace(one, beside=(held,)) if one.within is not None else one
        for one in inside(c10d("all_reduce", 3252, 66), LOOP)
    )
    first = one_elsewhere(barrier, inside(c10d("barrier", 5356, 60), LOOP)).verdicts[0]
    assert first.cause == "rank-conditional-collective"
    assert f"under `{held[1]}` (train.py:60)" in first.summary


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("if rank not in [-1, 0]:", "rank-conditional-collective"),
        ("past: if is_main(): return", "rank-conditional-collective"),
        ("if rank != 0:", "rank-conditional-collective"),
        # ranks of a group, and no condition on the rank
        ("if rank in ranks_of_stage:", "mismatched-collective"),
        ("if rank < split:", "mismatched-collective"),
        ("if dp_rank % 2 == 0:", "mismatched-collective"),
        # a rank that once goes elsewhere
        ("past: if rank == 2 and not ok: continue", "mismatched-collective"),
        ("past: if rank == 2: break", "mismatched-collective"),
        ("if rank != 2 or step < last:", "mismatched-collective"),
        ("if step % 9 == 8:", "mismatched-collective"),
    ],
)
def test_who_does_not_come_where_all_others_wait_under_a_condition(text: str, cause: str) -> None:
    barrier = inside(c10d("barrier", 5356, 66), LOOP, (60, text))
    gather = inside(c10d("all_gather", at=70), LOOP)
    first = one_elsewhere(gather, barrier).verdicts[0]
    assert (first.cause, [one.rank for one in first.culprits]) == (cause, [2])
    if cause.startswith("rank"):
        assert "does not come where ranks 0-1 are" in first.summary
    # where the one is in a branch of its own, they are two sides of one operation
    gather = inside(c10d("all_gather", at=70), LOOP, (60, "else: if rank == 0:"))
    if cause.startswith("rank"):
        assert one_elsewhere(gather, barrier).verdicts[0].cause == "mismatched-collective"


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        # what asks whether there are ranks, for the rank of a matrix, or names it elsewhere
        ((LOOP, (60, "if local_rank != -1:")), (LOOP,)),
        ((LOOP, (60, "if args.local_rank >= 0:")), (LOOP,)),
        ((LOOP, (60, "past: if self.rank is None: return")), (LOOP,)),
        ((LOOP, (60, "past: if stale: return rank")), (LOOP,)),
        ((LOOP, (60, "if cfg.lora_rank > 0:")), (LOOP,)),
        ((LOOP, (60, "@timed_per_rank")), (LOOP,)),
        ((LOOP, (60, "@hydra.main(version_base=None)")), (LOOP,)),
        ((LOOP, (60, "@broadcast_from_rank0")), (LOOP,)),
        # what every rank calls, with another value
        ((LOOP, (66, "at: dist.barrier(loud) and step  # loud = rank == 0")), (LOOP,)),
        ((LOOP, (66, "at: step and dist.barrier(loud)  # loud = rank == 0")), (LOOP,)),
        ((LOOP, (66, "at: dist.barrier(a if rank == 0 else b())")), (LOOP,)),
        ((LOOP, (66, "at: x = rank == 0 and f(dist.barrier(")), (LOOP,)),
        ((LOOP, (66, "at: if dist.barrier() and rank == 0:")), (LOOP,)),
        # all have come past it
        ((LOOP, (60, "past: if rank != 0: return")), (LOOP, (60, "past: if rank != 0: return"))),
        ((LOOP, (64, "if step % 10 == 0:")), (LOOP,)),
        ((LOOP, (64, "while rank_is_late:")), (LOOP,)),
        # all are under it
        ((LOOP, FIRST), (LOOP, FIRST)),
        (None, None),
    ],
)
def test_other_conditions_say_nothing(
    mine: tuple[tuple[int, str], ...] | None, theirs: tuple[tuple[int, str], ...] | None
) -> None:
    barrier = c10d("barrier", 5356, 49)
    found = one_elsewhere(
        barrier if mine is None else inside(barrier, *mine),
        BACKWARD if theirs is None else inside(BACKWARD, *theirs),
    )
    assert found.verdicts[0].cause == "mismatched-collective"


def test_a_condition_on_anything_else_that_one_is_under_alone_is_named() -> None:
    late = (64, "if seen - last >= 40:")
    told = "Rank 2 is under `if seen - last >= 40:` (train.py:64), and ranks 0-1 not"
    barrier = inside(c10d("barrier", 5356, 66), LOOP, late)
    first = one_elsewhere(barrier, inside(BACKWARD, LOOP)).verdicts[0]
    assert first.cause == "mismatched-collective"
    assert told in first.summary
    first = one_elsewhere(barrier, inside(BACKWARD, LOOP, late)).verdicts[0]
    assert "Rank 2 is under" not in first.summary


def test_who_came_the_same_way_is_under_the_same_condition() -> None:
    barrier = inside(c10d("barrier", 5356, 57), LOOP, FIRST)
    first = one_elsewhere(barrier, inside(BACKWARD, LOOP, FIRST)).verdicts[0]
    assert first.cause == "mismatched-collective"
    assert "under" not in first.summary


def test_who_is_through_with_a_broadcast_is_blamed_with_little_confidence() -> None:
    one = one_elsewhere(c10d("all_reduce", at=57), c10d("broadcast", at=56)).verdicts[0]
    assert (one.cause, one.confidence) == ("mismatched-collective", 0.5)
    assert "From broadcast some may rightly be through before others" in one.summary
    one = one_elsewhere(c10d("all_reduce", at=57), c10d("all_gather", at=56)).verdicts[0]
    assert one.confidence == 0.8
    assert "may rightly" not in one.summary


def test_who_is_alone_in_a_broadcast_may_wait_for_one_that_has_left_it_out() -> None:
    one = one_elsewhere(c10d("broadcast", at=56), c10d("all_reduce", at=57)).verdicts[0]
    assert one.cause == "mismatched-collective"
    assert "so that it may wait for one of those, which has left it out" in one.summary


def test_who_is_still_in_init_is_waited_for_by_who_has_left_it() -> None:
    first = one_elsewhere(c10d("all_reduce"), INIT).verdicts[0]
    assert (first.cause, [one.rank for one in first.culprits]) == ("mismatched-collective", [0, 1])
    assert "not through with init_process_group, which others have left" in first.summary


def test_two_branches_of_one_condition_are_a_mismatch() -> None:
    gather = inside(c10d("gather", 3252, 66), LOOP, FIRST)
    reduce = inside(c10d("reduce", 3252, 68), LOOP, (64, "else: if rank == 0:"))
    assert one_elsewhere(gather, reduce).verdicts[0].cause == "mismatched-collective"


GOOD = (55, "if loss is not None:")
LATE = (64, "if step % 5 == 0:")


@pytest.mark.parametrize(
    ("mine", "theirs", "said"),
    [
        (
            (),
            (GOOD,),
            ". Ranks 0-1 are under `if loss is not None:` (train.py:55), by which rank 2 most "
            "likely did not come",
        ),
        (
            (LATE,),
            (GOOD,),
            ". Rank 2 is under `if step % 5 == 0:` (train.py:64), and ranks 0-1 are under `if loss "
            "is not None:` (train.py:55): one of these differs",
        ),
        (
            ((60, "past: if bad: continue"),),
            (),
            ". Rank 2 is past `if bad: continue` (train.py:60), where ranks 0-1 may have turned",
        ),
        # all are under it, or past it, or it is alike on all ranks
        ((GOOD,), (GOOD,), ""),
        ((), ((55, "if world_size > 1:"),), ""),
        (((54, "past: if bad: continue"),), ((54, "past: if bad: continue"),), ""),
    ],
)
def test_what_led_others_to_where_one_has_gone_on_without_it_is_named(
    mine: tuple[tuple[int, str], ...], theirs: tuple[tuple[int, str], ...], said: str
) -> None:
    gather = inside(c10d("all_gather", at=66), LOOP, *mine)
    first = one_elsewhere(gather, inside(c10d("all_reduce"), LOOP, *theirs)).verdicts[0]
    assert first.cause == "mismatched-collective"
    assert said in first.summary
    assert said or first.summary.endswith("took another branch")


def test_an_early_return_of_a_callee_is_named() -> None:
    reduces = inside(c10d("all_reduce"), LOOP)
    at = next(i for i, one in enumerate(reduces) if one.file.endswith("train.py"))
    loss = frame("loss_boxes", "losses.py", 52)
    loss = replace(loss, within=((50, "past: if targets.numel() == 0: return"),))
    found = one_elsewhere(inside(c10d("reduce", at=66), LOOP), (*reduces[:at], loss, *reduces[at:]))
    said = "Ranks 0-1 are past `if targets.numel() == 0: return` (losses.py:50), where rank 2 most"
    assert said in found.verdicts[0].summary


def test_a_wrapper_that_is_being_made_does_not_train() -> None:
    making = (
        frame("_verify_param_shape_across_processes", "torch/distributed/utils.py", 299),
        frame("DistributedDataParallel.__init__", "torch/nn/parallel/distributed.py", 858),
        *user("train_step", 40),
    )
    found = one_elsewhere(c10d("all_reduce", 3252, 57), making)
    assert found.verdicts[0].cause == "mismatched-collective"


def test_callers_tell_apart_who_waits_in_one_helper() -> None:
    def reached_from(line: int) -> Stack:
        top = c10d("all_reduce", 3252, 48)
        return (*top[:3], frame("step", "train.py", line), *top[3:])

    found = one_elsewhere(reached_from(71), reached_from(70))
    first = found.verdicts[0]
    assert (first.cause, [one.rank for one in first.culprits]) == ("mismatched-collective", [2])
    assert "at train.py:48 (train_step), called from train.py:71 (step)" in first.summary
    # those of whom all came the same way are one class
    assert one_elsewhere(reached_from(70), reached_from(70)).verdicts[0].cause == "unknown"


def test_who_came_to_one_place_by_another_caller_does_not_wait_elsewhere() -> None:
    world = World()
    broadcast = c10d("broadcast", at=129)
    for line in (121, 121, 135):
        world.add((*broadcast[:3], frame("play", "train.py", line), *broadcast[3:]), FUTEX)
    world.add(user("load", 9), SLEEP)
    said = run(world).verdicts[0].summary
    assert "did not issue what ranks 0-2 wait for: broadcast at train.py:129" in said
    assert "elsewhere" not in said
    world.add(c10d("barrier", at=140), FUTEX)
    world.add(QUEUE, FUTEX)
    found = next(one for one in run(world).verdicts if one.cause == "queue-wait")
    assert "; ranks 0-2 wait in broadcast at train.py:129 (train_step)" in found.summary
    assert found.summary.endswith(", and 1 more elsewhere")


def test_others_under_several_conditions_are_not_said_to_be_under_one() -> None:
    world = World()
    for line, block in ((73, "if rank == 0:"), (77, "elif rank == 1:")):
        stack = inside(c10d("all_reduce"), LOOP)
        caller = replace(stack[3], line=line, within=((line, block),))
        world.add((*stack[:3], caller, *stack[4:]), FUTEX)
    world.add(inside(c10d("all_gather", at=66), LOOP, LATE), FUTEX)
    snapshot = world.snapshot()
    job = snapshot.job(None)
    assert job is not None
    case = Case(snapshot, job)
    said = branch(case, case.subjects[2:], case.subjects[:2])
    assert said == ". Rank 2 is under `if step % 5 == 0:` (train.py:64), and ranks 0-1 not"
    first = branch(case, case.subjects[2:], case.subjects[:1])
    assert first.endswith("and rank 0 is under `if rank == 0:` (train.py:73): one of these differs")


def test_who_waits_for_keys_of_the_store_at_two_places_is_told_together() -> None:
    world = World()
    for line in (34, 37, 37):
        world.add(user("commit", line, "store.wait([key])"), POLL)
    world.add(QUEUE, FUTEX)
    found = next(one for one in run(world).verdicts if one.cause == "queue-wait")
    assert found.summary.endswith(
        "; ranks 0-2 wait for a key in the store at train.py:37 (commit) and train.py:34 (commit)"
    )
