"""The verdict on calls that differed, ended all the same, and left something to hang later."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.flight import patterns
from hangtop_core.analysis.flight.earlier import OFTEN, earlier
from hangtop_core.analysis.flight.evidence import (
    SHOWN,
    at_site,
    facts,
    name,
    shift_fact,
    skip_text,
    verb,
    verdict,
)
from hangtop_core.diagnosis import Evidence
from hangtop_core.text.clean import clean
from hangtop_core.text.rank_sets import rank_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hangtop_core.analysis.flight.earlier import Earlier
    from hangtop_core.analysis.flight.patterns import Pattern
    from hangtop_core.analysis.flight.waits import Operation, Waits
    from hangtop_core.diagnosis import Verdict

TIE = 0.45
"""Confidence where the ranks are divided into equal halves: there is no majority to trust."""
UNSURE = 0.6
"""Confidence where ranks have lived with such differences, or may have differed before, too."""


def let_through(waits: Waits, operation: Operation, victims: Iterable[int]) -> Verdict | None:
    """The verdict on what differed in its group before an operation that hangs; None: nothing did.

    Args:
        waits: the graph.
        operation: at which it ends.
        victims: the ranks that wait behind it.
    """
    one = earlier(waits, operation.node.group) if operation.node.kind == "collective" else None
    if one is None:
        return None
    harmed = {*victims, *operation.entries, *operation.passed, *one.classes[0][1]} - {*one.odd}
    pattern, text = _skipped(one, operation) if one.shift is not None else _differed(one, operation)
    text += f"{_ended(one)} {_now(operation)}"
    found = [_fact(one, operation), *facts(waits, [operation])]
    if one.shift is not None:
        found.insert(0, shift_fact(waits.world, operation.node.group, one.shift))
    unsure = one.oldest or one.again >= OFTEN
    sure = TIE if one.tied else min(UNSURE, pattern.confidence) if unsure else None
    return verdict(pattern, text, one.odd, sorted(harmed), found, None, sure)


def _differed(one: Earlier, operation: Operation) -> tuple[Pattern, str]:
    (usual, most), *rest = one.classes
    said = "; ".join(
        f"{name(ranks)} issued {clean(entry.call.text, 120)} as #{one.seq} on {operation.label}"
        f"{at_site(entry)}"
        for entry, ranks in rest[:SHOWN]
    )
    text = f"{said}, where {name(most)} issued {clean(usual.call.text, 120)}{at_site(usual)}"
    if one.oldest:
        text += ", the oldest number that was compared"
    return _pattern(one), text


def _skipped(one: Earlier, operation: Operation) -> tuple[Pattern, str]:
    shift = one.shift
    assert shift is not None  # noqa: S101 - asked by who calls this
    seen = f", first seen in #{one.seq}" if one.seq != shift.seq else ""
    if shift.how == "skipped":
        return patterns.SKIPPED, f"{skip_text(shift)} on {operation.label}{seen}"
    extra = f"{clean(shift.found.call.op, 80)} #{shift.seq}{at_site(shift.found)}"
    there = " there" if shift.known else ""
    text = (
        f"{rank_name(shift.rank)} issued {extra} on {operation.label}, which the others do not call"
    )
    return patterns.ALONE, f"{text}{there}{seen}"


def _ended(one: Earlier) -> str:
    """That the library let it pass."""
    who = "NCCL compares" if one.classes[0][0].call.backend == "nccl" else "Libraries compare"
    what = "Its calls were paired with others since, and" if one.shift is not None else "It"
    return f". {what} ended on all ranks: {who} no calls, and results are wrong."


def _now(operation: Operation) -> str:
    waiting = sorted(operation.entries)
    text = f"What hangs now is {operation.entry.name}"
    if len(operation.classes) > 1:
        return f"{text}, which they have not issued alike"
    if operation.missing:
        return (
            f"{text}, which {name(operation.missing)} "
            f"{verb(operation.missing, 'has', 'have')} not issued"
        )
    if operation.passed:
        return f"{text}: over on {name(operation.passed)}, and not on {name(waiting)}"
    if operation.absent:
        return f"{text}; {name(operation.absent)} left no dump"
    return f"{text}, which all have issued alike"


def _pattern(one: Earlier) -> Pattern:
    (usual, _), *rest = one.classes
    if any(entry.call.op != usual.call.op for entry, _ in rest):
        return patterns.LET_THROUGH
    if any(entry.call.input_types != usual.call.input_types for entry, _ in rest):
        return patterns.TYPES
    return patterns.SIZES


def _fact(one: Earlier, operation: Operation) -> Evidence:
    said = "; ".join(
        f"{name(ranks)} issued {clean(entry.call.text, 160)} as #{one.seq}{at_site(entry)}"
        for entry, ranks in one.classes[:SHOWN]
    )
    text = f"{said}, on {operation.label}; over on all of them"
    return Evidence("flight", None, clean(text, 600))
