"""How long ranks take for a step, by how long they wait for each other in several.

Who waits for others most of the time takes little for its own part of a step; who hardly waits is
the one that they wait for. Nothing else is needed for that: neither what it does, nor its CPU time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.model.recurring import Wait
    from hangtop_core.model.snapshot import Rank

STEPS = 2
"""Waits for other ranks that have to have ended before steps are measured."""
MOST, LEAST = 0.5, 0.25
"""Part of the time that who is fast waits at least, and who is slow at most."""
RECENT = 2.0
"""So many times as long as the longest wait ago the last one ended, at most."""


class StepTimes(NamedTuple):
    """What a step takes slow ranks, and all others; in seconds, without waiting for each other."""

    slow: tuple[int, ...]
    """Indices of slow ranks."""
    steps: int
    slow_s: float
    others_s: float


def step_times(ranks: Sequence[Rank], at: float) -> StepTimes | None:
    """Return who is slow and what steps take; None where no rank waits for a few others.

    Args:
        ranks: all of a job that have not ended.
        at: the time of the snapshot.
    """
    waits = [[one for one in rank.waits if one.for_ranks] for rank in ranks]
    known = [own for own in waits if own]
    if len(known) * 2 < len(ranks) or not known:
        return None
    began = max(own[0].began for own in known)
    ended = max(own[-1].ended for own in known)
    steps = max(_count(own, began) for own in known)
    longest = max(own[-1].lasted_s for own in known)
    if steps < STEPS or at - ended > RECENT * longest:
        return None
    parts = [_part(own, began, ended) for own in waits]
    slow = tuple(i for i, part in enumerate(parts) if part <= LEAST)
    fast = [part for part in parts if part >= MOST]
    if not slow or len(slow) + len(fast) < len(ranks) or len(slow) > len(fast):
        return None
    step = (ended - began) / steps
    waited = max(parts[i] for i in slow)
    return StepTimes(slow, steps, step * (1 - waited), step * (1 - min(fast)))


def _count(waits: Sequence[Wait], began: float) -> int:
    return sum(one.ended > began for one in waits)


def _part(waits: Sequence[Wait], began: float, ended: float) -> float:
    """Part of a time in which a rank waited for others."""
    waited = (min(one.ended, ended) - max(one.began, began) for one in waits)
    return sum(max(seconds, 0.0) for seconds in waited) / max(ended - began, 0.1)
