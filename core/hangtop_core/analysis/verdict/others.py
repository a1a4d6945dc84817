"""What a verdict is beside the first one: a fault of its own, or a weaker explanation, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.analysis.standing import GONE
from hangtop_core.analysis.verdict.lost import own_error
from hangtop_core.analysis.verdict.naming import name_ranks
from hangtop_core.analysis.verdict.timeline import knows_since
from hangtop_core.text.clean import duration

if TYPE_CHECKING:
    from hangtop_core.analysis.verdict.base import Hit
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.diagnosis import Verdict

OWN = 0.6
"""Confidence from which a verdict on other ranks may be a fault of its own."""
TOGETHER_S = 1.0
"""Faults that began within this time began together."""
BY_ITSELF = frozenset(
    {"busy-in-python", "cgroup-frozen", "child-process-wait", "data-starved", "debugger-prompt"}
    | {"dataloader-worker-dead", "dataloader-worker-stuck", "disk-full", "fork-deadlock"}
    | {"gil-held", "gpu-ecc", "gpu-lost", "gpu-nvlink", "gpu-xid", "io-wait", "lock-wait"}
    | {"memory-thrash", "missing-collective", "node-unreachable", "output-pipe-full"}
    | {"pin-memory-stuck", "rank-oom-killed", "rank-stopped", "rank-traced"}
)
"""What comes over a rank whatever others do. All else may follow from another fault: a rank that
leaves takes others along, and a file lock or a service may be waited for because of it."""


class Beside(NamedTuple):
    """How a verdict stands to the first one."""

    weaker: str
    apart: bool


def beside(case: Case, first: tuple[Verdict, Hit], other: tuple[Verdict, Hit]) -> Beside:
    """Say why a verdict comes after the first, and whether both can be true.

    Args:
        case: what was observed.
        first: the first verdict, and what it was made of.
        other: the same of the other.
    """
    (one, one_hit), (two, two_hit) = first, other
    mine, others = _ranks(one), _ranks(two)
    how = "as certain"
    if two.confidence < one.confidence:
        how = f"less certain ({two.confidence:.2f} against {one.confidence:.2f})"
    if not others:
        return Beside(f"{how}, and it names no rank", False)
    who = name_ranks(sorted(others))
    if mine & others:
        both = name_ranks(sorted(mine & others))
        return Beside(f"{how}: it blames {both}, too, which the first explains", False)
    when = _when(case, one_hit, two_hit)
    if _by_another_error(case, one_hit, two_hit):
        return Beside(f"{who} left by another error: both have to be looked at{when}", True)
    if two.cause == one.cause:
        return Beside(f"the same again, of {who}: perhaps for the same reason{when}", False)
    if not mine or two.confidence < OWN or two.cause not in BY_ITSELF:
        return Beside(f"{how}; it may also only follow from the first{when}", False)
    them = name_ranks(sorted(mine))
    return Beside(f"what holds {them} does not hold {who}: both have to be mended{when}", True)


def _by_another_error(case: Case, first: Hit, other: Hit) -> bool:
    """Whether ranks have left by an exception that has nothing to do with communication.

    And not by the one that ended the first.
    """
    if not all(s.activity.kind in GONE for s in (*first.subjects, *other.subjects)):
        return False
    errors = {e.shape for s in first.subjects if (e := own_error(case, s)) is not None}
    own = [own_error(case, s) for s in other.subjects]
    return bool(own) and all(
        e is not None
        and e.code == "traceback"
        and "known" not in e.fields
        and e.shape not in errors
        for e in own
    )


def _ranks(verdict: Verdict) -> set[int]:
    return {one.rank for one in verdict.culprits if one.rank is not None}


def _when(case: Case, first: Hit, other: Hit) -> str:
    """`; it began 0:12 later`, where both times are known."""
    if not all(knows_since(case, s) for s in (*first.subjects, *other.subjects)):
        return ""
    one, two = (
        min((s.standing.since for s in hit.subjects), default=None)
        if hit.late is None
        else hit.late
        for hit in (first, other)
    )
    if one is None or two is None or abs(two - one) < TOGETHER_S:
        return ""
    return f"; it began {duration(abs(two - one))} {'later' if two > one else 'earlier'}"
