"""Who has left a loop in which others still are, and what the loop goes over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from support.build import one_elsewhere
from support.situations import BACKWARD, LOOP, c10d, frame, inside

if TYPE_CHECKING:
    from hangtop_core.model.snapshot import Frame
    from support.situations import Stack


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
def test_who_has_left_another_loop_of_collectives_is_told_by_that_loop(text: str) -> None:
    barrier = inside(c10d("barrier", 5356, 92))
    first, second = one_elsewhere(barrier, inside(c10d("all_reduce"), (50, text))).verdicts
    assert (first.cause, [one.rank for one in first.culprits]) == ("missing-collective", [2])
    assert f"is through with the loop at train.py:50 (`{text}`) and waits in" in first.summary
    assert "what ends that loop differs between ranks" in first.summary
    assert (second.cause, [one.rank for one in second.culprits]) == ("mismatched-collective", [2])
    assert "Rank 2 is through with the loop at train.py:50" in second.summary
    assert "in which ranks 0-1 still are" in second.summary


STOPS = (50, "while not control.should_stop:")


@pytest.mark.parametrize(
    ("block", "way"),
    [
        ("past: if patience.over: break", " (it is left early at `if patience.over: break` (line"),
        ("past: if patience.over:", " (perhaps it is left early at `if patience.over:` (line 52))"),
        ("past: if bad: continue", ""),
    ],
)
def test_who_alone_is_still_in_a_loop_that_the_others_have_left_is_blamed(
    block: str, way: str
) -> None:
    stays = inside(c10d("all_reduce"), STOPS, (52, block))
    first = one_elsewhere(stays, inside(c10d("all_gather", at=92)), ranks=4).verdicts[0]
    assert (first.cause, [one.rank for one in first.culprits]) == ("missing-collective", [3])
    assert "ranks 0-2 are through with the loop" in first.summary
    assert f"what ends that loop differs between ranks{way}" in first.summary
    assert way or "left early" not in first.summary


@pytest.mark.parametrize(
    ("inner", "below", "told"),
    [
        # in the other branch, or the part of another rank, it has never been in that loop
        ([(40, "if rank == 0:"), STOPS], [(40, "else: if rank == 0:")], False),
        ([(40, "if fits:"), STOPS], [(40, "else: if fits:")], False),
        ([(40, "if fits:"), STOPS], [], True),
        # which is entered anew in each round of one that both are in
        ([(40, "for step in range(9):"), STOPS], [(40, "for step in range(9):")], False),
    ],
)
def test_who_may_never_have_been_in_a_loop_has_not_left_it(
    inner: list[tuple[int, str]], below: list[tuple[int, str]], *, told: bool
) -> None:
    barrier = inside(c10d("barrier", 5356, 92), *below)
    found = one_elsewhere(barrier, inside(c10d("all_reduce"), *inner))
    assert (found.verdicts[0].cause == "missing-collective") is told
    assert ("through with the loop" in found.verdicts[0].summary) is told


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
        ((50, "for shard in range(shards):"), "for i in range(n):", 0.8),
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


def epoch(line: str, *callees: Frame) -> Stack:
    """A rank in an operation, by way of some frames, below one line of the program's loop."""
    main = replace(frame("main", "train.py", 41, line), within=((40, "for epoch in range(3):"),))
    return (*callees, main, frame("<module>", "train.py", 90))


TRAINS = (
    *c10d("all_reduce")[:2],
    replace(frame("Runner.train_epoch", "train.py", 12), within=((11, "for x in self.loader:"),)),
)
ENDS = (*c10d("barrier", 5356)[:2], replace(frame("Runner.end", "train.py", 22), within=()))
NO_GRAD = frame("context_decorator", "torch/utils/_contextlib.py", 120)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("runner.end(epoch, runner.train_epoch(epoch))", True),
        ("if self.end(loss=float(self.train_epoch(epoch))):", True),
        ("results[epoch] = end(train_epoch(epoch) if epoch else None)", True),
        # nobody knows
        ("", False),
        ("runner.end(epoch, runner.train_epoch(epoch)", False),
        # it is yet to come, or comes after it, too; or some go there and some here
        ("runner.train_epoch(runner.end(epoch))", False),
        ("end(train_epoch(0)) + train_epoch(1)", False),
        ("end(train_epoch(end(0)))", False),
        ("end(epoch) if evaluator else train_epoch(epoch)", False),
        # generators by turns
        ("for pair in zip(train_epoch(epoch), end(epoch)):", False),
    ],
)
def test_who_has_come_back_from_the_call_of_an_argument_has_left_the_loop_in_it(
    line: str, *, told: bool
) -> None:
    for some in (ENDS, (*ENDS, NO_GRAD)):
        first = one_elsewhere(epoch(line, *some), epoch(line, *TRAINS)).verdicts[0]
        assert [one.rank for one in first.culprits] == [2]
        assert (first.cause == "uneven-inputs") is told
        assert ("through with the loop at train.py:11 (`for x in se" in first.summary) is told
        assert ("in the call of an argument" in first.evidence[0].text) is told


def test_tasks_of_an_event_loop_take_turns_whatever_line_has_made_them() -> None:
    line = "asyncio.run(end(train_epoch(epoch)))"
    run = frame("_run", "py:asyncio/events.py", 84)
    found = one_elsewhere(epoch(line, *ENDS, run), epoch(line, *TRAINS, run))
    assert [one.cause for one in found.verdicts] == ["mismatched-collective"]
