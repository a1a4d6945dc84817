"""Ranks that an exception has led away from where the others wait: from handlers and from logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from support.build import World
from support.situations import BACKWARD, FUTEX, SLEEP, Stack, c10d, frame, user
from support.verdicts import blamed, printing

if TYPE_CHECKING:
    from hangtop_core.diagnosis import Verdict

FIT = frame("fit", "train.py", 40)
LOOP = (39, "for x, y in loader:")
BEGIN = (80, "fit(model, loader)")
HANDLER = (82, "except ValueError:")
TRAINS: Stack = (
    *BACKWARD[:4],
    replace(FIT, within=(LOOP,), beside=()),
    replace(frame("main", "train.py", 80), within=(), beside=()),
    frame("<module>", "train.py", 90),
)


def leaves(*beside: tuple[int, str], line: int = 84) -> Stack:
    """A rank that waits in a barrier which `main` calls, past what is given."""
    main = replace(frame("main", "train.py", line), within=(), beside=beside)
    return (*c10d("barrier", 5356)[:2], main, frame("<module>", "train.py", 90))


def traceback(*calls: tuple[str, int], error: str = "ValueError: no box") -> list[str]:
    lines = ["Traceback (most recent call last):"]
    for name, line in calls:
        lines += [f'  File "/home/me/train.py", line {line}, in {name}', "    x = f(x)"]
    return [*lines, error, "step 12"]


THROUGH = traceback(("main", 80), ("fit", 40), ("load", 12))
GAVE_UP = "RuntimeError: [x.cc:84] Timed out waiting 1800000ms for recv operation to complete"


def judge(odd: Stack, *lines: str, ranks: int = 3) -> Verdict:
    world = World()
    for _ in range(ranks - 1):
        world.add(TRAINS, FUTEX)
    world.add(odd, FUTEX)
    return printing(world, *lines).verdicts[0]


def test_who_is_in_the_handler_of_the_try_in_which_others_are_has_met_an_exception() -> None:
    one = judge(leaves(BEGIN, HANDLER))
    assert (one.cause, blamed(one), one.confidence) == ("missing-collective", [2], 0.92)
    assert "has left train.py:80 (main), where ranks 0-1 still are, by an exception" in one.summary
    assert "in what handles that, train.py:82 (`except ValueError:`)" in one.summary


@pytest.mark.parametrize(
    ("handler", "line", "told"),
    [
        ("except Exception:", 81, True),  # of a callback, one line after what the others are in
        ("except:", 81, True),
        ("except (KeyError, OSError) as error:", 81, True),
        ("except ValueError:", 81, False),  # which does not take it
        ("except Exception:", 84, False),  # raised in the handler itself
        ("except Exception:", 60, False),  # before the `try`
    ],
)
def test_what_the_try_raised_elsewhere_is_what_its_except_handles(
    handler: str, line: int, told: bool
) -> None:
    lost = traceback(("main", line), ("on_step", 12), error="OSError: [Errno 28] No space left")
    one = judge(leaves(BEGIN, (83, handler)), "ERROR callback failed", *lost)
    assert (one.cause, blamed(one)) == ("missing-collective", [2])
    said = ", by an exception, OSError: [Errno 28] No space left at train.py:12 (on_step), and is"
    assert (said in one.summary) is told
    tries = "its traceback goes through the `try` of which rank 2 is in the `except`"
    assert (tries in one.evidence[0].text) is told
    step = "look at what raises that at" if told else "log that exception where it is handled"
    assert one.next_steps[0].startswith(step)


@pytest.mark.parametrize(
    "beside",
    [
        (BEGIN,),  # past that try, or in its finally
        (BEGIN, (82, "except StopIteration:")),
        (BEGIN, (82, "save()"), (83, "except OSError:")),  # in the handler of another one
    ],
)
def test_who_is_past_a_try_may_have_come_to_its_end(beside: tuple[tuple[int, str], ...]) -> None:
    one = judge(leaves(*beside))
    assert (one.cause, blamed(one)) == ("uneven-inputs", [2])


def test_a_traceback_through_the_line_at_which_others_are_tells_why_a_rank_has_left_it() -> None:
    one = judge(leaves(BEGIN), *THROUGH)
    assert (one.cause, blamed(one)) == ("missing-collective", [2])
    assert "by an exception, ValueError: no box at train.py:12 (load). It waits in barr" in (
        one.summary
    )
    assert "the log does not tell whose ValueError: no box is" in one.evidence[0].text
    # of which it is told whose it is
    one = judge(leaves(BEGIN), *(f"[rank2]: {line}" for line in THROUGH))
    assert (one.cause, blamed(one)) == ("missing-collective", [2])
    assert not any("does not tell" in fact.text for fact in one.evidence)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("ERROR:sft:training failed on rank 2", True),
        ("12:00:01 [rank2] ERROR epoch failed", True),
        ("12:00:01 CRITICAL rank=2 world_size=3: epoch failed", True),
        ("rank 2: caught an exception", True),
        ("ERROR exchange of rank 2 with rank 1 failed", False),
        ("ERROR epoch failed", False),
        ("INFO rank 1 step 11", False),  # a line of somebody else
    ],
)
def test_the_line_before_a_traceback_may_name_whose_it_is(said: str, told: bool) -> None:
    one = judge(leaves(BEGIN), said, *THROUGH)
    assert (one.cause, blamed(one)) == ("missing-collective", [2])
    text = "the line before the traceback of ValueError: no box names rank 2; it goes through"
    assert one.evidence[0].text.startswith(text) is told
    assert ("does not tell whose" in one.evidence[0].text) is not told


@pytest.mark.parametrize(
    "lines",
    [
        [f"[rank0]: {line}" for line in THROUGH],
        ["ERROR:sft:training failed on rank 0", *THROUGH],
        # as many as there are ranks: all have caught it once
        THROUGH * 3,
        # caught inside of what the others are in
        traceback(("fit", 40), ("load", 12)),
        # of another call
        traceback(("main", 77), ("prepare", 12)),
        # a whole stack
        traceback(("<module>", 90), ("main", 80), ("fit", 40), ("load", 12)),
        # it waited in vain: another one did not come
        traceback(("main", 80), ("fit", 40), error=GAVE_UP),
    ],
)
def test_other_errors_do_not_tell_why_a_rank_has_left(lines: list[str]) -> None:
    one = judge(leaves(BEGIN), *lines)
    assert (one.cause, blamed(one)) == ("uneven-inputs", [2])


def test_what_was_caught_in_each_round_of_a_loop_does_not_tell_why_that_is_over() -> None:
    train = (*TRAINS[:4], replace(FIT, within=(LOOP,), beside=()), *TRAINS[5:])
    for beside, cause in (((), "uneven-inputs"), ((LOOP,), "missing-collective")):
        after = replace(frame("fit", "train.py", 50), within=(), beside=beside)
        world = World()
        world.waiters(2, train)
        world.add((*c10d("barrier", 5356)[:2], after, *TRAINS[5:]), FUTEX)
        one = printing(world, *traceback(("fit", 40), ("load", 12))).verdicts[0]
        assert (one.cause, blamed(one)) == (cause, [2])


def test_who_sleeps_after_an_exception_is_told_with_it() -> None:
    main = replace(frame("main", "train.py", 84), within=(), beside=(BEGIN, HANDLER))
    world = World()
    world.waiters(2, TRAINS)
    world.add((main, frame("<module>", "train.py", 90)), SLEEP)
    one = printing(world, *THROUGH).verdicts[0]
    assert (one.cause, blamed(one)) == ("missing-collective", [2])
    assert "by an exception, ValueError: no box at train.py:12 (load), and is in what h" in (
        one.summary
    )
    world.ranks.pop()
    world.add(user("cool_down", 41), SLEEP)
    assert "by an exception" not in printing(world, *THROUGH).verdicts[0].summary
