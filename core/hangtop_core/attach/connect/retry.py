"""Backoff of connections: the more failures, the longer the wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hangtop_core.attach.connect.timing import Timing

_MOST = 16
"""Maximum count of failures: no wait is longer by then."""


class Retry:
    """The backoff of one link."""

    def __init__(self, timing: Timing) -> None:
        self.at: float | None = None
        """When (monotonic) to connect; None where that is not planned."""
        self.failures = 0
        """Number of failures in a row."""
        self._timing = timing

    def plan(self, now: float) -> float:
        """Plan the next connection after a failure; return the seconds until then."""
        wait = self._timing.backoff(self.failures)
        self.failures = min(self.failures + 1, _MOST)
        self.at = now + wait
        return wait
