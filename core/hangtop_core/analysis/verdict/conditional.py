"""Collectives under a condition that asks for the rank: the others do not come there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.frames import place, where
from hangtop_core.analysis.verdict.base import Hit, Rule, Subject
from hangtop_core.analysis.verdict.callers import (
    Block,
    calls,
    rank_conditions,
    stack_of,
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

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model import Frame

Condition = tuple["Frame", Block]


def _conditional(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    if case.suspects or len(case.waiting_classes) < 2 or case.by_recorders is not None:
        return
    if any(s.activity.kind == "new-group" for s in case.waiters):
        return
    if any(one.mismatched for one in case.in_flight):
        return
    collective = [s for s in case.waiters if s.activity.kind == "collective"]
    under = {id(s): told for s in collective if (told := condition(case, s)) is not None}
    found = [s for s in collective if id(s) in under]
    # Branches of one condition are two sides of one operation, unless only one side waits in it.
    if not found or 2 * len(found) > len(case.waiters):
        return
    for group in alike(found, lambda s: (s.activity.site, under[id(s)])):
        first = group[0]
        frame, (line, text) = under[id(first)]
        blamed = {id(s) for s in group}
        others = [s for s in case.waiters if id(s) not in blamed]
        file = place(frame).rpartition(":")[0]
        yield Hit(
            subjects=group,
            summary=sentence(
                case,
                f"{who(group)} alone {is_are(group, 'waits', 'wait')} in {first.activity.op} at "
                f"{first.activity.at} {case.since(first)}, under {worded(text)} "
                f"({file}:{line}), where {name_ranks(others)} "
                f"{is_are(others, 'does', 'do')} not come",
                blamed=group,
            ),
            evidence=(
                fact("stacks", first.number, f"{where(frame)} is under line {line}, `{text}`"),
                *common_facts(case, group),
            ),
            steps=(
                f"move {first.activity.op} out of the `if` at {file}:{line}: all ranks of its "
                f"group have to call it",
            ),
        )


def condition(case: Case, subject: Subject) -> Condition | None:
    """The innermost condition on the rank that a subject is under, and nobody else.

    None where somebody who waits elsewhere is under the same one: then it says nothing.
    """
    way = _calls(case, subject)
    others = [
        {(frame.file, frame.name, block) for frame in theirs for block in frame.within or ()}
        for s in case.waiters
        if (theirs := _calls(case, s)) != way
    ]
    for frame in way:
        for block in reversed(rank_conditions(frame)):
            if not any((frame.file, frame.name, block) in one for one in others):
                return frame, block
    return None


def _calls(case: Case, subject: Subject) -> tuple[Frame, ...]:
    return calls(stack_of(case.snapshot.stacks, subject))


CONDITIONAL = Rule(
    cause="rank-conditional-collective",
    title="A collective stands under a condition that asks for the rank",
    seen="At most half of the ranks wait in a collective that, in its function or one of its "
    "callers, stands under an `if` (or its `else`) that names the rank, as the file of the program "
    "has it; all others wait elsewhere, and not under that.",
    excluded="Somebody is outside communication, or makes a group. The recorders of all ranks tell "
    "it: see the other rule of this cause. The file is newer than the process, or on a network.",
    confidence=0.85,
    next_steps=("Move the collective out of the `if`",),
    find=_conditional,
    needs=(More("recorder", "which operation it has issued more or less than the others"),),
)
