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

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

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
    under = conditions(case, collective)
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


def _blocks(way: Iterable[Frame]) -> Iterator[tuple[str, str, Block]]:
    for frame in way:
        for block in frame.within or ():
            yield frame.file, frame.name, block


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
    excluded="Somebody is outside communication, or makes a group. The recorders of all ranks tell "
    "it: see the other rule of this cause. The file is newer than the process, or on a network.",
    confidence=0.85,
    next_steps=("Move the collective out of the `if`",),
    find=_conditional,
    needs=(More("recorder", "which operation it has issued more or less than the others"),),
)
