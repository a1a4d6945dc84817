"""Who uses the processors: one rank for which all others wait, or children of each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.model.snapshot import Rank
    from hangtop_core.stacks.kinds import Kind

WORKS_SHARE = 0.15
"""Cores it uses at least, also on a machine with too much to do."""
WAITS_SHARE, WAITS_PART = 0.1, 0.15
"""Cores that each of the others uses at most, and as a part of what it uses, over several steps."""
IDLE_SHARE = 0.03
"""Cores that who waits may use in any case."""
LESS_PART = 0.4
"""The same part where it may be so: of a few seconds one may be a step of theirs."""

CHILD_SHARE = 0.05
"""Cores that a child uses at least which is at work, also on a machine with too much to do."""
STAYS_S = 10.0
"""Seconds in the same functions after which a wait is no matter of a step."""
FOR_CHILDREN: frozenset[Kind] = frozenset({"child", "queue", "join"})
"""What a rank may do that waits for children."""


def lags(own: float, most: float) -> bool:
    """Whether a rank that has used this share of a core works, and others that wait for it."""
    return own >= WORKS_SHARE and most <= min(WAITS_SHARE, max(WAITS_PART * own, IDLE_SHARE))


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


def by_children(rank: Rank) -> bool:
    """Whether a child of it is at work, and its main thread next to not at all."""
    most = max(rank.child_cpu_share.values(), default=0.0)
    return most >= CHILD_SHARE and (rank.main_cpu_share or 0.0) <= WAITS_SHARE


def stays(rank: Rank, at: float) -> bool:
    """Whether a rank has been in the same functions for a while, and its children work."""
    since = rank.sample.same_functions_since if rank.sample is not None else None
    return since is not None and at - since >= STAYS_S and by_children(rank)
