"""How far a node's clock is ahead of this machine's: at its hello, and when one of them is set."""

from __future__ import annotations

SAME_CLOCK = 0.1
"""Seconds by which a clock may differ before it counts as skewed: the way here takes time."""
EARLY, LATE = 10.0, 60.0
"""Seconds before and after which a piece cannot come: a clock was set. Much is late, nothing early
but where the hello was late itself."""


def at_hello(clock: float | None, same_machine: bool, at: float) -> float:
    """Return the skew in seconds of a clock that was read there and came here ``at``."""
    skew = 0.0 if clock is None or same_machine else clock - at
    return skew if abs(skew) > SAME_CLOCK else 0.0


def was_set(skew: float, clock: float, at: float) -> bool:
    """Whether a clock was set meanwhile, as what was read there came here ``at``."""
    return not -LATE < clock - skew - at < EARLY
