"""Where recorders say more than stacks do: of all ranks together, and of what one waits in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.flight import patterns

if TYPE_CHECKING:
    from hangtop_core.analysis.activity import Activity
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.diagnosis import Verdict
    from hangtop_core.model import Rank

_DIFFER = frozenset({patterns.SIZES.cause, patterns.TYPES.cause})


def by_recorders(case: Case) -> Verdict | None:
    """What recorders conclude first, where all ranks wait for one another.

    None where stacks tell more: a rank is elsewhere, was not read, or makes a group; or operations
    differ, be it only in size, that were called from different lines.
    """
    seen, making = case.picture, any(s.activity.kind == "new-group" for s in case.waiters)
    if case.suspects or making or seen is None or not seen.diagnosis.verdicts:
        return None
    first, world = seen.diagnosis.verdicts[0], seen.world
    if first.cause == patterns.INVERSION.cause:
        return first  # those in a circle prove it, whatever others do
    if world.absent or world.blank or first.cause == patterns.MISMATCHED.cause:
        return None
    return None if first.cause in _DIFFER and _other_lines(case, first) else first


def _other_lines(case: Case, one: Verdict) -> bool:
    """Whether all that are blamed stand at lines at which nobody else does."""
    blamed = {culprit.rank for culprit in one.culprits}
    mixed = [members for _, members in case.waiting_classes if blamed & {s.number for s in members}]
    return all(s.number in blamed for members in mixed for s in members)


def outstanding(rank: Rank, activity: Activity) -> bool:
    """Whether, as its recorder has it, what a main thread sleeps in for C code is a collective."""
    asleep = activity.kind == "waiting" and activity.family == "futex"
    trace = rank.recorder.trace if asleep and rank.recorder is not None else None
    return trace is not None and any(trace.pending())
