"""Nodes whose first process list is still expected, and the work that waits for them.

A thousand nodes that connect at once send more in that second than in many later ones. New nodes
are read first, and all of their processes are shown before stacks and meters of some.
"""

from __future__ import annotations

PAUSE_NODE_S, PAUSE_S = 0.002, 2.0
"""Seconds without a new arrival after which waiting ends: for each node, and at most."""
SHOW_SHARE = 0.25
"""Share of that pause for which other work waits after the snapshot of all nodes: it is being
shown."""
ALL_S = 20.0
"""Seconds that all arrivals may take, extrapolated from those so far; a slower stream leaves time
for other work."""


class Arrivals:
    """The expected nodes of one session; times are of the monotonic clock."""

    def __init__(self) -> None:
        self.over = False
        """Whether the last node has arrived since a snapshot was made."""
        self._missing: set[str] = set()
        self._nodes = 0
        self._began = self._last = 0.0

    def __contains__(self, name: str) -> bool:
        """Return whether a node is still expected."""
        return name in self._missing

    def expect(self, name: str, now: float) -> None:
        """Add a node that is expected."""
        self._began, self._last = self._began or now, now
        self._missing.add(name)
        self._nodes += 1

    def came(self, name: str, now: float) -> None:
        """Note that a node has sent its process list, or that it cannot."""
        if name in self._missing:
            self._missing.remove(name)
            self._last = now
            self.over = not self._missing

    def shown(self, now: float) -> None:
        """Note that a snapshot was made."""
        if self.over:
            self.over, self._last = False, now

    def pending(self, now: float) -> bool:
        """Return whether deferrable work should wait for expected nodes."""
        pause = min(self._nodes * PAUSE_NODE_S, PAUSE_S)
        if not self._missing:
            return now - self._last < pause * SHOW_SHARE
        share = (self._nodes - len(self._missing)) / max(self._nodes, 1)
        return now - self._last < pause and now - self._began < max(pause, share * ALL_S)
