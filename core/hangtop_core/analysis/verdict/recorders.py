"""Causes that flight recorders show where all ranks wait for one another, and stacks tell little.

The recorders of all ranks are judged together by `analysis.flight`, as dumps are; what it concludes
first is the verdict here. Where a rank is outside of communication its stack says more, and the
other rules have spoken.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from hangtop_core.analysis.flight import patterns
from hangtop_core.analysis.verdict.base import Hit, Rule, Subject
from hangtop_core.analysis.verdict.evidence import common_facts, several
from hangtop_core.analysis.verdict.naming import name_ranks
from hangtop_core.analysis.verdict.uneven import UNEVEN

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.flight.patterns import Pattern
    from hangtop_core.analysis.verdict.case import Case

_EXCLUDED = "A rank is outside of communication, or the recorder of a rank could not be read."


def _concluded(pattern: Pattern, case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    one = case.by_recorders
    if one is None or one.cause != pattern.cause or any(UNEVEN.find(case, left)):
        return
    blamed = {culprit.rank for culprit in one.culprits}
    yield Hit(
        subjects=tuple(s for s in case.waiters if s.number in blamed),
        explained=case.waiters,
        summary=one.summary,
        evidence=one.evidence,
        steps=pattern.next_steps,
        confidence=one.confidence,
    )


def _rule(pattern: Pattern) -> Rule:
    return Rule(
        cause=pattern.cause,
        title=pattern.title,
        seen="The recorders of all ranks were read. " + pattern.seen,
        excluded=_EXCLUDED,
        confidence=pattern.confidence,
        next_steps=pattern.next_steps,
        find=partial(_concluded, pattern),
    )


def _subset(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    making = [s for s in case.waiters if s.activity.kind == "new-group"]
    others = [s for s in case.waiters if s.activity.kind != "new-group"]
    if case.suspects or not making or not others:
        return
    first = others[0].activity
    yield Hit(
        subjects=tuple(others),
        summary=(
            f"new_group was called by {len(making)} of {len(case.subjects)} ranks "
            f"({name_ranks(making)}) and waits for all; {name_ranks(others)} did not call it and "
            f"{several(first.text, others)} at {first.at}. Every rank has to call it, also those "
            "that are not in the group"
        ),
        evidence=common_facts(case, others),
        steps=(
            f"look at {making[0].activity.at} for a condition on the rank: call new_group on all "
            f"ranks, in the same order",
        ),
    )


SUBSET = Rule(
    cause="subset-new-group",
    title="A process group is made by some ranks only",
    seen="Some ranks wait in new_group (split_group, init_device_mesh), all others in another "
    "operation.",
    excluded="A rank is outside of communication: it may be on its way to new_group.",
    confidence=0.85,
    next_steps=("Call new_group on all ranks, in the same order",),
    find=_subset,
)
RULES = tuple(
    map(
        _rule,
        (
            patterns.INVERSION,
            patterns.P2P_CIRCLE,
            patterns.P2P_CHAIN,
            patterns.SKIPPED,
            patterns.ALONE,
            patterns.SIZES,
            patterns.TYPES,
            patterns.TRANSPORT,
        ),
    )
)
