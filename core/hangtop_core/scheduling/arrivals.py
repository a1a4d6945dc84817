"""Which nodes have yet to tell for the first time what runs on them, and what waits for them.

A thousand nodes that come at once say more in that second than in many later ones. Who is new is
read first, and what all of them run is to be seen before the stacks and meters of some.
"""

from __future__ import annotations

PAUSE_NODE_S, PAUSE_S = 0.002, 2.0
"""Seconds without another one after which nobody waits any more: for each node, and at most."""
SHOW_SHARE = 0.25
"""Of that, for which the rest waits once the picture of all was made: it is being shown."""
ALL_S = 20.0
"""Seconds that all together may take, going by how many have come so far; a stream that takes
longer leaves time for other things."""


class Arrivals:
    """Of one session; times are of the monotonic clock."""

    def __init__(self) -> None:
        self.over = False
        """Whether the last one has come since a picture was made."""
        self._missing: set[str] = set()
        self._nodes = 0
        self._began = self._last = 0.0

    def __contains__(self, name: str) -> bool:
        """Whether a node is still to come."""
        return name in self._missing

    def expect(self, name: str, now: float) -> None:
        """Wait for a node, too."""
        self._began, self._last = self._began or now, now
        self._missing.add(name)
        self._nodes += 1

    def came(self, name: str, now: float) -> None:
        """Note that a node has told what runs on it, or that it cannot."""
        if name in self._missing:
            self._missing.remove(name)
            self._last = now
            self.over = not self._missing

    def shown(self, now: float) -> None:
        """Note that a picture was made."""
        if self.over:
            self.over, self._last = False, now

    def pending(self, now: float) -> bool:
        """Whether what can wait is to wait for those that are still to come."""
        pause = min(self._nodes * PAUSE_NODE_S, PAUSE_S)
        if not self._missing:
            return now - self._last < pause * SHOW_SHARE
        share = (self._nodes - len(self._missing)) / max(self._nodes, 1)
        return now - self._last < pause and now - self._began < max(pause, share * ALL_S)
