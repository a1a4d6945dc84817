"""Detect that the wall clock of a machine is set, by the time since boot, which cannot be set."""

from __future__ import annotations

import time

STEP_S = 0.5
"""Seconds; a slowly corrected clock moves less between two readings."""


class WallClock:
    """Detects when the clock of this machine is set."""

    def __init__(self) -> None:
        self._offset = _offset()

    def set_by(self) -> float:
        """Return the seconds by which the clock was set since the last call, mostly 0."""
        before, self._offset = self._offset, _offset()
        by = round(self._offset - before, 3)
        return by if abs(by) > STEP_S else 0.0


def _offset() -> float:
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
