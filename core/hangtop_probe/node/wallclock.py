"""When the wall clock of a machine is set, by the time since boot, which nobody sets."""

from __future__ import annotations

import time

STEP_S = 0.5
"""A wall clock that is corrected slowly moves less than this between two looks at it."""


class WallClock:
    """Notices when the clock of this machine is set."""

    def __init__(self) -> None:
        self._offset = _offset()

    def set_by(self) -> float:
        """Return by how many seconds it was set since the last call, 0 mostly."""
        before, self._offset = self._offset, _offset()
        by = round(self._offset - before, 3)
        return by if abs(by) > STEP_S else 0.0


def _offset() -> float:
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
