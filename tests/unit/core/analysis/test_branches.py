"""Who waits where in loops and conditions, as the program's file has them, and by which callers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from hangtop_core.analysis.verdict.engine import diagnose
from support.build import BACKWARD, FUTEX, INIT, World, c10d, frame, user

if TYPE_CHECKING:
    from hangtop_core.diagnosis import Diagnosis
    from support.build import Stack

LOOP = (50, "for x, y in loader:")
FIRST = (64, "if rank == 0:")


def run(world: World) -> Diagnosis:
    snapshot = world.snapshot()
    return diagnose(snapshot, snapshot.job(None), 30.0)


def inside(stack: Stack, *within: tuple[int, str]) -> Stack:
    """The stack, with the blocks that its innermost own frame is in."""
    found = []
    told = False
    for one in stack:
        own = one.file.endswith("train.py")
        blocks = within if own and not told else () if own else None
        told = told or own
        found.append(replace(one, within=blocks))
    return tuple(found)


def one_elsewhere(stack: Stack, others: Stack = BACKWARD, ranks: int = 3) -> Diagnosis:
    world = World()
    for _ in range(ranks - 1):
        world.add(others, FUTEX)
    world.add(stack, FUTEX)
    return run(world)


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


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
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


def test_who_is_through_with_a_broadcast_is_blamed_with_little_confidence() -> None:
    one = one_elsewhere(c10d("all_reduce", at=57), c10d("broadcast", at=56)).verdicts[0]
    assert (one.cause, one.confidence) == ("mismatched-collective", 0.5)
    assert "From broadcast some may rightly be through before others" in one.summary
    one = one_elsewhere(c10d("all_reduce", at=57), c10d("all_gather", at=56)).verdicts[0]
    assert one.confidence == 0.8


def test_who_is_still_in_init_is_waited_for_by_who_has_left_it() -> None:
    first = one_elsewhere(c10d("all_reduce"), INIT).verdicts[0]
    assert (first.cause, [one.rank for one in first.culprits]) == ("mismatched-collective", [0, 1])
    assert "not through with init_process_group, which others have left" in first.summary


def test_two_branches_of_one_condition_are_a_mismatch() -> None:
    gather = inside(c10d("gather", 3252, 66), LOOP, FIRST)
    reduce = inside(c10d("reduce", 3252, 68), LOOP, (64, "else: if rank == 0:"))
    assert one_elsewhere(gather, reduce).verdicts[0].cause == "mismatched-collective"


def test_who_has_left_the_loop_has_run_out_of_data_and_the_loop_is_named() -> None:
    barrier = inside(c10d("barrier", 5356, 92))
    first = one_elsewhere(barrier, inside(BACKWARD, LOOP)).verdicts[0]
    assert (first.cause, [one.rank for one in first.culprits]) == ("uneven-inputs", [2])
    assert "through with the loop at train.py:50 (`for x, y in loader:`)" in first.summary


def test_who_has_left_a_loop_of_collectives_over_data_has_run_out_of_it() -> None:
    barrier, reduces = inside(c10d("barrier", 5356, 92)), inside(c10d("all_reduce"), LOOP)
    first, second = one_elsewhere(barrier, reduces).verdicts
    assert (first.cause, [one.rank for one in first.culprits]) == ("uneven-inputs", [2])
    assert first.summary.endswith("rank 2 got fewer batches, or left that loop early")
    assert (second.cause, [one.rank for one in second.culprits]) == ("mismatched-collective", [2])
    assert second.confidence < first.confidence


@pytest.mark.parametrize("text", ["for step in range(steps):", "while not loader.empty():"])
def test_who_has_left_another_loop_of_collectives_is_in_another_operation(text: str) -> None:
    barrier = inside(c10d("barrier", 5356, 92))
    first = one_elsewhere(barrier, inside(c10d("all_reduce"), (50, text))).verdicts[0]
    assert (first.cause, [one.rank for one in first.culprits]) == ("mismatched-collective", [2])
    assert "Rank 2 is through with the loop at train.py:50" in first.summary
    assert "in which ranks 0-1 still are" in first.summary


@pytest.mark.parametrize("text", ["while True:", "for attempt in range(3):"])
def test_a_loop_of_attempts_in_a_callee_is_not_one_over_data(text: str) -> None:
    # GIVEN most in a step that is tried until it returns, and one rank below the call of it
    below = inside(c10d("all_gather", 3252, 60), LOOP)
    step = inside(BACKWARD, LOOP)
    at = next(i for i, one in enumerate(step) if one.file.endswith("train.py"))
    attempts = replace(frame("training_step", "step.py", 9), within=((8, text),))
    found = one_elsewhere(below, (*step[:at], attempts, *step[at:]))
    assert [one.cause for one in found.verdicts] == ["mismatched-collective"]
    assert "through with" not in found.verdicts[0].summary


def test_a_few_that_still_train_have_got_more_batches() -> None:
    barrier = inside(c10d("barrier", 5356, 92))
    first = one_elsewhere(inside(BACKWARD, LOOP), barrier, ranks=4).verdicts[0]
    assert (first.cause, [one.rank for one in first.culprits]) == ("uneven-inputs", [3])
    assert "rank 3 got more batches" in first.summary


EPOCHS = (50, "for epoch in range(start, cfg.epochs):")


@pytest.mark.parametrize(
    ("outer", "text", "confidence"),
    [
        (LOOP, "for i, mb in enumerate(microbatches):", None),
        (LOOP, "for _ in range(cfg.grad_accum_steps):", None),
        (LOOP, "for i in range(n):", None),
        ((50, "for samples in grouped(reader, 4):"), "for i, s in enumerate(samples):", None),
        ((50, "while (batch := next(it, None)) is not None:"), "for x in batch.split(8):", None),
        ((50, "for parts, last in reader(rank):"), "for i, x in enumerate(parts):", None),
        ((50, "for update in range(updates):"), "for batch in islice(it, 4):", 0.6),
        ((50, "while step < max_steps:"), "for batch in loader:", 0.8),
        # an epoch inside of the loop over epochs, or who knows what
        (EPOCHS, "for x, y in train_loader:", 0.8),
        (EPOCHS, "for i in range(n):", 0.8),
        ((50, "for name, loader in loaders.items():"), "for batch in loader:", 0.8),
        ((50, "for batch_size in (8, 16):"), "for batch in loader:", 0.8),
        ((50, "while True:"), "for i in range(n):", 0.6),
        ((50, "for step in range(steps):"), "for i in range(n):", 0.6),
    ],
)
def test_a_loop_inside_of_one_that_both_are_in_may_be_over_the_parts_of_a_batch(
    outer: tuple[int, str], text: str, confidence: float | None
) -> None:
    # GIVEN most in the backward of an inner loop, and one rank below it, all in the outer loop
    below = inside(c10d("all_reduce", 3252, 60), outer)
    found = one_elsewhere(below, inside(BACKWARD, outer, (54, text)))
    by_cause = {one.cause: one for one in found.verdicts}
    uneven = by_cause.get("uneven-inputs")
    assert (uneven.confidence if uneven else None) == confidence
    told = by_cause["mismatched-collective"]
    assert [one.rank for one in told.culprits] == [2]
    assert any("find_unused_parameters" in str(step) for step in told.next_steps)


@pytest.mark.parametrize(
    ("outer", "function", "text", "after", "cause"),
    [
        ("for self.epoch in range(self.epochs):", "_Loop.run", "while not self.done:", "run", True),
        ("while not self.done:", "_EpochLoop.run", "while not self.done:", "barrier", True),
        ("while not self.done:", "fit", "for i in count():", "Validator.run", True),
        ("while not self.done:", "fit", "for i in count():", "save", False),
        ("while self.step < self.max_steps:", "train_epoch", "while True:", "save", True),
        ("while not self.done:", "train_epoch", "while True:  # retry", "save", False),
        ("while self.step < self.max_steps:", "train_step", "while True:", "evaluate", False),
        ("for batch in self.loader:", "train_step", "while True:", "evaluate", False),
    ],
)
def test_the_loop_over_data_may_be_in_a_callee_and_be_told_by_what_is_around_it(
    outer: str, function: str, text: str, after: str, cause: bool
) -> None:
    # GIVEN most in a function with a loop, and one rank in what is called after that function
    def stack(top: Stack, *between: Stack) -> Stack:
        at = next(i for i, one in enumerate(top) if one.file.endswith("train.py"))
        return (*top[:at], *[one for some in between for one in some], *top[at:])

    run_ = replace(frame(function, "loops.py", 9), within=((8, text),))
    step = replace(frame("advance", "loops.py", 30), within=())
    others = stack(inside(BACKWARD, (50, outer)), (step, run_))
    past = replace(frame(after, "loops.py", 70), within=())
    found = one_elsewhere(stack(inside(c10d("barrier", 5356, 60), (50, outer)), (past,)), others)
    first = found.verdicts[0]
    assert [one.rank for one in first.culprits] == [2]
    assert first.cause == ("uneven-inputs" if cause else "mismatched-collective")
    assert (f"through with the loop at loops.py:8 (`{text}`)" in first.summary) == cause


@pytest.mark.parametrize("within", [None, ()])
def test_further_down_is_past_the_loop_only_where_nobody_knows_of_loops(
    within: tuple[()] | None,
) -> None:
    # GIVEN those who train in no loop at all: they wait in line 57, the other one in line 92
    barrier, training = c10d("barrier", 5356, 92), BACKWARD
    if within is not None:
        barrier, training = inside(barrier), inside(training)
    cause = one_elsewhere(barrier, training).verdicts[0].cause
    assert cause == ("uneven-inputs" if within is None else "mismatched-collective")


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
