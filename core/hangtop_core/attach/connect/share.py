"""How much of this machine's processor one node may take up with what it sends.

All nodes are read by one thread. Whatever a node sends (floods of well-formed messages, megabytes
of nested lists packed into one line), it is cut off before the others have to wait for long.
"""

from __future__ import annotations

BURST_S = 2.0
"""Seconds of processor time a node may cost at once; a big dump of a big node costs under 0.5."""
REFILL = 0.2
"""Seconds of it that come back each second: a node that is watched costs under 0.02."""
TOO_MUCH = "it sends so much that reading it would keep the other nodes waiting"


class Share:
    """What is left for one node, over all its connections; times of the monotonic clock."""

    def __init__(self, now: float) -> None:
        self._left = BURST_S
        self._at = now

    def spend(self, cost: float, now: float) -> bool:
        """Take off ``cost`` seconds of processor time; return whether it was too much."""
        self._left = min(BURST_S, self._left + max(now - self._at, 0.0) * REFILL)
        self._at = now
        self._left = max(self._left - cost, 0.0)
        return self._left <= 0.0
