"""Collectives under a condition that asks for the rank: the others do not come there."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from hangtop_core.analysis.verdict.base import Hit, Rule, Subject, alike, besides
from hangtop_core.analysis.verdict.callers import (
    AT,
    PAST,
    Block,
    calls,
    line_of,
    rank_conditions,
    stack_key,
    worded,
)
from hangtop_core.analysis.verdict.callers import conditions as around
from hangtop_core.analysis.verdict.evidence import common_facts, fact
from hangtop_core.analysis.verdict.naming import name_ranks
from hangtop_core.analysis.verdict.needs import More
from hangtop_core.analysis.verdict.recorderfacts import AGREED, apart, flight_facts, held
from hangtop_core.analysis.verdict.sentences import is_are, sentence, several, who
from hangtop_core.model.frames import is_library, plain_name, where
from hangtop_core.text.commands import Advice

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model.snapshot import Frame

_WITH = ("with", "async with")
_NO_IF = (AT, "@", *_WITH)
_OF_GROUP = re.compile(
    r"\bin\s+[a-zA-Z_]|[<>]=?\s*(?:[a-zA-Z_]|[1-9])|//|%|\bor\b|^"
    + PAST
    + r".*(?:\band\b|: break\b)"
)
"""What tells ranks of a group from others, or a rank in one case, not one rank from all."""
Condition = tuple["Frame", Block]


def under_condition(case: Case) -> tuple[tuple[tuple[Subject, ...], Condition], ...]:
    """Ranks that wait alike in a collective under a condition on the rank, and that condition.

    Where most are under it: those that are not. Where recorders show that ranks differ, only ranks
    that do.
    """
    if case.suspects or len(case.waiting_classes) < 2:
        return ()
    if any(s.activity.kind == "new-group" for s in case.waiters):
        return ()
    collective = [s for s in case.waiters if s.activity.kind == "collective"]
    under = conditions(case, collective)
    found = [s for s in collective if id(s) in under]
    if 2 * len(found) > len(case.waiters):
        # Who goes first does so while the others wait for that.
        first = [s for s in found if under[id(s)][1][1].startswith(_WITH)]
        found = first if 0 < 2 * len(first) < len(case.waiters) else found
    groups = list(alike(found, lambda s: (s.activity.site, under[id(s)])))
    told = [(group, under[id(group[0])]) for group in groups]
    # Branches of one condition are two sides of one operation, unless only one side waits in it.
    if 2 * len(found) > len(case.waiters):
        rest = [s for s in case.waiters if id(s) not in under]
        one_place = len({s.activity.site for s in rest}) == 1
        of_group = _OF_GROUP.search(told[0][1][1][1]) is not None
        told = [(tuple(rest), told[0][1])] if len(told) == 1 and one_place and not of_group else []
    differ = any(one.mismatched for one in case.in_flight)
    return tuple(
        (group, one)
        for group, one in told
        if (not differ or apart(case, [s.number for s in group]) is not None)
        and not (id(group[0]) in under and _has_roles(case, group, one[0]))
    )


def _has_roles(case: Case, group: Sequence[Subject], frame: Frame) -> bool:
    """Whether all others are under conditions on the rank of their own in that function.

    So programs give each rank its part (`if rank == LEARNER: ... elif rank == REFERENCE:`), and
    what is called in one part may well be called in the others.
    """
    stacks = {stack_key(s) for s in besides(case.waiters, group)}
    ways = [calls(case.snapshot.stacks.get(key, ())) for key in stacks]
    return all(
        any((f.file, f.name) == (frame.file, frame.name) and rank_conditions(f) for f in way)
        for way in ways
    )


def _conditional(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    for group, (frame, block) in case.conditional if case.by_recorders is None else ():
        first, numbers = group[0], {s.number: s for s in group}
        line, text = block
        one = apart(case, numbers)
        others = [s for s in case.waiters if s.number not in numbers]
        at = f"{worded(text)} ({line_of(frame, block)})"
        waits = f"{is_are(group, 'waits', 'wait')} in {held(case, first)}"
        if first.activity.kind != "collective":
            waits = several(first.activity.text.rstrip(","), group)
        waits += f" at {first.activity.at} {case.since(first)}"
        inside = first if id(first) in conditions(case, [first]) else others[0]
        if inside is first:
            said = f"{who(group)} alone {waits}, {at}, where {name_ranks(others)} "
            said += f"{is_are(others, 'does', 'do')} not come"
        else:
            said = f"{who(group)} {waits}, and {is_are(group, 'does', 'do')} not come where "
            said += f"{name_ranks(others)} {is_are(others, 'is', 'are')}, {at}"
        op = held(case, inside).partition(" ")[0]
        yield Hit(
            subjects=group,
            summary=sentence(case, said, blamed=group),
            evidence=(
                fact("stacks", inside.number, f"{where(frame)} is {worded(text)}, line {line}"),
                *flight_facts(one, tuple(numbers)),
                *common_facts(case, group),
            ),
            steps=(
                Advice(
                    f"{_mended(op, text)} {line_of(frame, block)}: all ranks of its "
                    "group have to call it"
                ),
            ),
            confidence=AGREED if one is not None else None,
        )


def _mended(op: str, text: str) -> str:
    if text.startswith(PAST):
        return f"move {op} before that condition, at"
    return f"move {op} out of {'that' if text.startswith(_NO_IF) else 'the `if`'} at"


def conditions(
    case: Case, subjects: Iterable[Subject], any_at_all: bool = False
) -> dict[int, Condition]:
    """By id(), the innermost condition on the rank that a subject is under, and nobody else.

    None of those where somebody who waits elsewhere is under the same one: then it says nothing.
    Or the outermost condition of any kind: there a rank goes another way.
    """
    ways = {key: calls(case.snapshot.stacks.get(key, ())) for key in map(stack_key, case.waiters)}
    # Who waits elsewhere may have come the same way, to another operation of one line.
    under = Counter(
        one
        for way, _ in {(ways[stack_key(s)], s.activity.text) for s in case.waiters}
        for one in {
            (frame.file, frame.name, block)
            for frame in way
            for block in (*(frame.within or ()), *(frame.beside or ()))
        }
    )
    alone = {
        key: next(
            (
                (frame, block)
                for frame in (reversed(way) if any_at_all else way)
                for block in (
                    around(frame)
                    if any_at_all
                    else reversed(rank_conditions(frame, _called(case, key, frame)))
                )
                if under[frame.file, frame.name, block] == 1  # by itself
            ),
            None,
        )
        for key, way in ways.items()
    }
    return {id(s): one for s in subjects if (one := alone[stack_key(s)]) is not None}


def _called(case: Case, key: str, frame: Frame) -> set[str]:
    """Names of what a frame calls, and through libraries, until there is one of its kind again."""
    found: set[str] = set()
    own_line = any(text.startswith(AT) for _, text in frame.within or ())
    for one in case.snapshot.stacks[key] if own_line else ():
        if one is frame:
            break
        found = found if is_library(one) else set()
        found.add(plain_name(one.name))
    return found


CONDITIONAL = Rule(
    cause="rank-conditional-collective",
    title="A collective stands under a condition that asks for the rank",
    seen="At most half of the ranks wait in a collective that, in its function or one of its "
    "callers, stands under an `if` (or its `else`) that names the rank, as the file of the program "
    "has it; all others wait elsewhere, and not under that. Or below `if rank != 0: return` (or "
    "`continue`), in `rank == 0 and f()`, `f() if rank == 0 else x`, under a decorator that names "
    "the rank (`@rank_zero_only`), or in `with x.main_process_first():`. Where more than half wait "
    "under one that always tells one rank from all, and the others at one line: those others.",
    excluded="Somebody is outside communication, or makes a group. Recorders show that another "
    "rank differs, or sends and receives in a circle or a chain, or groups in another order where "
    "the others have made that call before. The file is newer than the process, or on a network.",
    confidence=0.85,
    next_steps=("Move the collective out of the `if`",),
    find=_conditional,
    needs=(More("recorder", "which operation it has issued more or less than the others"),),
)
