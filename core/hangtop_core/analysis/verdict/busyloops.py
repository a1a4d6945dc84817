"""The loop that a rank is in, and none of those that wait for it, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.standing import wakes_up
from hangtop_core.analysis.verdict.callers import block_at
from hangtop_core.model.meters import latest

if TYPE_CHECKING:
    from hangtop_core.analysis.verdict.base import Subject
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model.frames import Loop

LASTS_S = 10.0
"""Seconds after which that a memory does not change is worth telling."""


def loop_told(case: Case, subject: Subject) -> str:
    """Evidence of that loop; empty where there is none.

    Who has not run since it is blocked does not go round in any.
    """
    loop, told = loop_of_its_own(case, subject), _circle(case, subject)
    if loop and told is not None:
        if case.at - told[1] < LASTS_S:
            return ""
        text = f"is in the loop at {loop}, in all samples {case.lasting(told[1])}, by the same "
        text += "calls, and its memory has not changed"
        return text + ("; no rank that waits is in it" if case.waiters else "")
    if loop and wakes_up(subject.rank, subject.standing):
        return f"is in the loop at {loop}, which only a line in it ends; no rank that waits is"
    return ""


def never_left(case: Case, subject: Subject) -> str:
    """That loop, where the subject is called hung although its functions change; else empty."""
    sample = subject.rank.sample
    changes = sample is not None and (sample.same_functions_since or 0) > subject.standing.since
    return loop_of_its_own(case, subject) if changes and not subject.standing.moved else ""


def loop_of_its_own(case: Case, subject: Subject) -> str:
    """`train.py:20 (`while True:`)`; empty where there is none."""
    told = _circle(case, subject)
    loop = told[0] if told else case.waiters_stacks.endless_loop(subject.rank)
    return block_at(loop[0], loop[1:]) if loop else ""


def _circle(case: Case, subject: Subject) -> tuple[Loop, float] | None:
    """That it goes round in, and works on nothing new."""
    if subject.activity.kind != "busy" or not subject.rank.sample or not subject.rank.sample.loops:
        return None
    return case.waiters_stacks.circle(subject.rank)


def left_in_loops(case: Case) -> float | None:
    """Since when all that are left go round in a `while`, where the others have waited in vain.

    Those have left, so that nobody waits any more. None where one of them may get on.
    """
    since: list[float] = []
    for subject in case.live:
        told, rank = _circle(case, subject), subject.rank
        if told is None:
            return None
        last = latest((told[1], rank.data_at))
        if last is None or case.at - last < case.hang_after:
            return None
        since.append(last)
    given_up = case.said.gave_up - {s.number for s in case.live} if since else frozenset()
    return max(since) if given_up else None
