"""How often to look at what is due on a node: ever more seldom while nothing is new there."""

from __future__ import annotations

import math

SHARE, SHARE_MOST = 0.2, 2.0
"""Of the time for which nothing was new on a node, to the next look at it: of few, and of many."""
MOST_S, NODES = 10.0, 64
"""Seconds between two looks at most, where there are no more nodes than these; of more both are
more in proportion, since each look costs the head."""
LONG_S = 24.0
"""Seconds after which it does not matter when exactly a node at rest is looked at."""
TOGETHER, TOGETHER_SHARE = 64, 1 / 16
"""Nodes that have rested for that long and are looked at in one round: a job hangs on all of its
nodes in the same second, and the head would have to look at all of them in the same second for ever
after. So many at least, and of all nodes."""


class _Look:
    __slots__ = ("due", "since", "told")

    def __init__(self, told: object, now: float) -> None:
        self.told = told
        self.since = self.due = now


class Pace:
    """Of all nodes; times are of the monotonic clock."""

    def __init__(self) -> None:
        self._looks: dict[str, _Look] = {}
        self._left = math.inf

    def begin(self) -> None:
        """Begin a round of looks."""
        self._left = max(TOGETHER, len(self._looks) * TOGETHER_SHARE)

    def due(self, name: str, told: object, now: float) -> bool:
        """Whether to look at a node now, and note that this is done.

        At once where ``told`` is another than the last time: that says what is known of it.
        """
        look = self._looks.get(name)
        if look is None or look.told != told:
            self._looks[name] = _Look(told, now)
            return True
        rested = now - look.since
        if now < look.due or (rested > LONG_S and self._left <= 0):
            return False
        self._left -= rested > LONG_S
        many = max(1.0, len(self._looks) / NODES)
        look.due = now + min(rested * min(SHARE * many, SHARE_MOST), MOST_S * many)
        return True
