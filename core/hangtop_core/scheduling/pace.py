"""Backoff of polling: a node is polled ever more seldom while nothing changes on it."""

from __future__ import annotations

import math

SHARE, SHARE_MOST = 0.2, 2.0
"""Share of the time without changes that passes before the next poll: for few nodes and for
many."""
MOST_S, NODES = 10.0, 64
"""Maximum seconds between two polls, for up to this many nodes; for more, both grow in proportion,
since each poll costs the head."""
LONG_S = 24.0
"""Seconds of rest after which the exact time of a poll does not matter."""
TOGETHER, TOGETHER_SHARE = 64, 1 / 16
"""Polls per round of nodes that have rested that long: a minimum, and a share of all nodes. A job
hangs on all of its nodes in the same second, and without this limit the head would poll all of them
in the same second for ever after."""


class _Look:
    __slots__ = ("due", "since", "state")

    def __init__(self, state: object, now: float) -> None:
        self.state = state
        self.since = self.due = now


class Pace:
    """The polling schedule of all nodes; times are of the monotonic clock."""

    def __init__(self) -> None:
        self._looks: dict[str, _Look] = {}
        self._left = math.inf

    def begin(self) -> None:
        """Begin a round of polls."""
        self._left = max(TOGETHER, len(self._looks) * TOGETHER_SHARE)

    def due(self, name: str, state: object, now: float) -> bool:
        """Return whether to poll a node now, and note that it is polled.

        The node is polled at once where ``state`` differs from the last one.
        """
        look = self._looks.get(name)
        if look is None or look.state != state:
            self._looks[name] = _Look(state, now)
            return True
        rested = now - look.since
        if now < look.due or (rested > LONG_S and self._left <= 0):
            return False
        self._left -= rested > LONG_S
        many = max(1.0, len(self._looks) / NODES)
        look.due = now + min(rested * min(SHARE * many, SHARE_MOST), MOST_S * many)
        return True
