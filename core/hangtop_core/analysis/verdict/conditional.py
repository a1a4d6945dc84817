"""Collectives under a condition that asks for the rank: the others do not come there."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hangtop_core.analysis.frames import place, where
from hangtop_core.analysis.verdict.base import Hit, Rule, Subject
from hangtop_core.analysis.verdict.callers import (
    Block,
    calls,
    rank_conditions,
    worded,
)
from hangtop_core.analysis.verdict.evidence import (
    alike,
    common_facts,
    fact,
    is_are,
    sentence,
    who,
)
from hangtop_core.analysis.verdict.naming import name_ranks
from hangtop_core.analysis.verdict.needs import More
from hangtop_core.analysis.verdict.recorded import AGREED, apart, flight_facts, held

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model import Frame

Condition = tuple["Frame", Block]


def under_condition(case: Case) -> tuple[tuple[tuple[Subject, ...], Condition], ...]:
    """Ranks that wait alike in a collective under a condition on the rank, and that condition.

    Where recorders show that ranks differ, only those that do.
    """
    if case.suspects or len(case.waiting_classes) < 2:
        return ()
    if any(s.activity.kind == "new-group" for s in case.waiters):
        return ()
    collective = [s for s in case.waiters if s.activity.kind == "collective"]
    under = conditions(case, collective)
    found = [s for s in collective if id(s) in under]
    # Branches of one condition are two sides of one operation, unless only one side waits in it.
    if not found or 2 * len(found) > len(case.waiters):
        return ()
    groups = alike(found, lambda s: (s.activity.site, under[id(s)]))
    differ = any(one.mismatched for one in case.in_flight)
    return tuple(
        (group, under[id(group[0])])
        for group in groups
        if not differ or apart(case, [s.number for s in group]) is not None
    )


def _conditional(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    for group, (frame, (line, text)) in case.conditional if case.by_recorders is None else ():
        first, numbers = group[0], {s.number: s for s in group}
        one = apart(case, numbers)
        others = [s for s in case.waiters if s.number not in numbers]
        file = place(frame).rpartition(":")[0]
        yield Hit(
            subjects=group,
            summary=sentence(
                case,
                f"{who(group)} alone {is_are(group, 'waits', 'wait')} in {held(case, first)} at "
                f"{first.activity.at} {case.since(first)}, under {worded(text)} "
                f"({file}:{line}), where {name_ranks(others)} "
                f"{is_are(others, 'does', 'do')} not come",
                blamed=group,
            ),
            evidence=(
                fact("stacks", first.number, f"{where(frame)} is under line {line}, `{text}`"),
                *flight_facts(one, tuple(numbers)),
                *common_facts(case, group),
            ),
            steps=(
                f"move {held(case, first).partition(' ')[0]} out of the `if` at {file}:{line}: all "
                "ranks of its group have to call it",
            ),
            confidence=AGREED if one is not None else None,
        )


def conditions(case: Case, subjects: Iterable[Subject]) -> dict[int, Condition]:
    """By id(), the innermost condition on the rank that a subject is under, and nobody else.

    None of those where somebody who waits elsewhere is under the same one: then it says nothing.
    """
    ways = {key: calls(case.snapshot.stacks.get(key, ())) for key in map(_stack, case.waiters)}
    under = Counter(
        one
        for way in set(ways.values())
        for one in {
            (frame.file, frame.name, block) for frame in way for block in frame.within or ()
        }
    )
    alone = {
        key: next(
            (
                (frame, block)
                for frame in way
                for block in reversed(rank_conditions(frame))
                if under[frame.file, frame.name, block] == 1  # by itself
            ),
            None,
        )
        for key, way in ways.items()
    }
    return {id(s): one for s in subjects if (one := alone[_stack(s)]) is not None}


def _stack(subject: Subject) -> str:
    """Key of the stack of a subject's main thread; empty where there is none."""
    sample = subject.rank.sample
    return sample.threads[0].stack if sample is not None and sample.threads else ""


CONDITIONAL = Rule(
    cause="rank-conditional-collective",
    title="A collective stands under a condition that asks for the rank",
    seen="At most half of the ranks wait in a collective that, in its function or one of its "
    "callers, stands under an `if` (or its `else`) that names the rank, as the file of the program "
    "has it; all others wait elsewhere, and not under that.",
    excluded="Somebody is outside communication, or makes a group. Recorders show that another "
    "rank differs, or sends and receives in a circle or a chain, or groups in another order where "
    "the others have made that call before. The file is newer than the process, or on a network.",
    confidence=0.85,
    next_steps=("Move the collective out of the `if`",),
    find=_conditional,
    needs=(More("recorder", "which operation it has issued more or less than the others"),),
)
