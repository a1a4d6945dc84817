"""Whether one rank uses the processors while all others wait: it may hold up every step."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.model import Rank

WORKS_SHARE = 0.2
"""Cores it uses at least, also on a machine with too much to do."""
WAITS_SHARE, WAITS_PART = 0.1, 0.15
"""Cores that each of the others uses at most, and as a part of what it uses, over several steps."""
LESS_PART = 0.4
"""The same part where it may be so: of a few seconds one may be a step of theirs."""


def lags(own: float, most: float) -> bool:
    """Whether a rank that has used this share of a core works, and others that wait for it."""
    return own >= WORKS_SHARE and most <= min(WAITS_SHARE, WAITS_PART * own)


def slow_one(ranks: Sequence[Rank]) -> Rank | None:
    """Return the rank that used much more than any other in the last seconds; None if none did."""
    if len(ranks) < 2:
        return None
    slow = max(ranks, key=lambda one: one.cpu_share or 0.0)
    own, shares = slow.cpu_share or 0.0, [one.cpu_share for one in ranks if one is not slow]
    known = [one for one in shares if one is not None]
    if len(known) < len(shares) or own < WORKS_SHARE or max(known) > LESS_PART * own:
        return None
    return slow
