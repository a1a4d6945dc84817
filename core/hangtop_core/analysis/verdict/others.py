"""What a verdict is beside the first one: a fault of its own, or a weaker explanation, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.analysis.verdict.case import name_ranks
from hangtop_core.text import duration

if TYPE_CHECKING:
    from hangtop_core.analysis.verdict.base import Hit
    from hangtop_core.analysis.verdict.case import Case

OWN = 0.6
"""Confidence from which a verdict on other ranks is a fault of its own."""
TOGETHER_S = 1.0
"""Faults that began within this time began together."""


class Beside(NamedTuple):
    """How a verdict stands to the first one."""

    weaker: str
    apart: bool


def beside(case: Case, first: tuple[Hit, float], other: tuple[Hit, float]) -> Beside:
    """Say why a verdict comes after the first, and whether both can be true.

    Args:
        case: what was observed.
        first: what the first verdict was made of, and its confidence.
        other: the same of the other.
    """
    mine, others = _ranks(first[0]), _ranks(other[0])
    surer = f"less certain ({other[1]:.2f} against {first[1]:.2f})"
    equal = "as certain"
    how = surer if other[1] < first[1] else equal
    if not others:
        return Beside(f"{how}, and it names no rank", False)
    if mine & others:
        both = name_ranks(sorted(mine & others))
        return Beside(f"{how}: it blames {both}, too, which the first explains", False)
    when = _when(first[0], other[0])
    who, them = name_ranks(sorted(others)), name_ranks(sorted(mine)) if mine else ""
    if not mine or other[1] < OWN:
        return Beside(f"{how}; {who} may also only follow from the first{when}", False)
    return Beside(f"what holds {them} does not hold {who}: both have to be mended{when}", True)


def _ranks(hit: Hit) -> set[int]:
    named = {one.rank for one in hit.absent if one.rank is not None}
    return {s.number for s in hit.subjects} | named


def _when(first: Hit, other: Hit) -> str:
    """`; it began 0:12 later`, where both times are known."""
    one = min((s.standing.since for s in first.subjects), default=None)
    two = min((s.standing.since for s in other.subjects), default=None)
    if one is None or two is None or abs(two - one) < TOGETHER_S:
        return ""
    return f"; it began {duration(abs(two - one))} {'later' if two > one else 'earlier'}"
