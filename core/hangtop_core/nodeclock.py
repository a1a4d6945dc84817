"""How far a node's clock is ahead of this machine's: at its hello, and when one of them is set."""

from __future__ import annotations

import time

SAME_CLOCK = 0.1
"""Seconds by which a clock may differ before it counts as skewed: the way here takes time."""
EARLY, LATE = 10.0, 60.0
"""Seconds before and after which a piece cannot come: a clock was set. Much is late, nothing early
but where the hello was late itself."""
STEP_S = 0.5
"""A wall clock that is corrected slowly moves less than this between two looks at it."""


def at_hello(clock: float | None, same_machine: bool, at: float) -> float:
    """Return the skew in seconds of a clock that was read there and came here ``at``."""
    skew = 0.0 if clock is None or same_machine else clock - at
    return skew if abs(skew) > SAME_CLOCK else 0.0


def was_set(skew: float, clock: float, at: float) -> bool:
    """Whether a clock was set meanwhile, as what was read there came here ``at``."""
    return not -LATE < clock - skew - at < EARLY


class Here:
    """Notices when the clock of this machine is set, by the time since boot, which is not."""

    def __init__(self) -> None:
        self._offset = _offset()

    def set_by(self) -> float:
        """Return by how many seconds it was set since the last call, 0 mostly."""
        before, self._offset = self._offset, _offset()
        by = self._offset - before
        return by if abs(by) > STEP_S else 0.0


def _offset() -> float:
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
