"""Limit of this machine's CPU time that one node's messages may cost.

One thread reads all nodes. Whatever a node sends (floods of well-formed messages, megabytes of
nested lists packed into one line), it is cut off before the others have to wait for long.
"""

from __future__ import annotations

BURST_S = 2.0
"""CPU seconds that a node may cost at once; a big dump of a big node costs under 0.5."""
REFILL = 0.2
"""CPU seconds of it that come back each second: a watched node costs under 0.02."""
TOO_MUCH = "it sends so much that reading it would keep the other nodes waiting"


class Share:
    """The remaining CPU time of one node, over all connections; times are monotonic."""

    def __init__(self, now: float) -> None:
        self._left = BURST_S
        self._at = now

    def spend(self, cost: float, now: float) -> bool:
        """Deduct ``cost`` seconds of CPU time; return whether it was too much."""
        self._left = min(BURST_S, self._left + max(now - self._at, 0.0) * REFILL)
        self._at = now
        self._left = max(self._left - cost, 0.0)
        return self._left <= 0.0
