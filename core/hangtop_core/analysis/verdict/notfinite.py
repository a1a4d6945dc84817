"""What an inf or nan adds: a rank that saw one may have left its loop by it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.verdict.evidence import SHOWN, fact
from hangtop_core.model.numerics import earliest
from hangtop_core.text.clean import duration
from hangtop_core.text.commands import Advice
from hangtop_core.text.rank_sets import names

if TYPE_CHECKING:
    from collections.abc import Collection

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.diagnosis import Evidence
    from hangtop_core.model.numerics import First
    from hangtop_core.model.snapshot import Job, Snapshot

STEP = Advice(
    "look for a branch that one rank takes when its loss or gradients are not finite; "
    "`hangtop numerics` shows the values of the calls before"
)


def numbers_facts(case: Case, blamed: Collection[int]) -> tuple[Evidence, ...]:
    """The first inf or nan of the ranks that are blamed; of the job, where none of them has one."""
    seen = case.saw_numbers
    mine = [seen[rank] for rank in sorted(blamed) if rank in seen]
    return tuple(
        fact("numerics", one.rank, f"saw {_words(case.snapshot, one.first)}")
        for one in mine[:SHOWN] or [*seen.values()][:1]
        if one.first is not None
    )


def first_of(snapshot: Snapshot, job: Job) -> Evidence | None:
    """The first inf or nan of a job, whatever state it is in; how many ranks have seen one."""
    told = [one.numerics for one in job.ranks if one.numerics is not None]
    found = earliest(told)
    if found is None:
        return None
    who, first = found
    later = sorted(
        one.rank
        for one in told
        if one is not who and one.first is not None and one.rank is not None
    )
    also = f"; {names(later)} saw one, too" if later else ""
    return fact("numerics", who.rank, f"saw {_words(snapshot, first)}{also}")


def _words(snapshot: Snapshot, first: First) -> str:
    return f"{first.sentence}, {duration(max(snapshot.at - first.at, 0.0))} ago"
