"""Offset between a node's clock and this machine's: at its hello, and when a clock is set."""

from __future__ import annotations

SAME_CLOCK = 0.1
"""Seconds by which a clock may differ before it counts as skewed: the message takes time."""
EARLY, LATE = 10.0, 60.0
"""A piece that is earlier or later than this many seconds proves that a clock was set. Pieces are
often late, but early only where the hello itself was late."""


def at_hello(clock: float | None, same_machine: bool, at: float) -> float:
    """Return the skew in seconds of a clock that was read on the node and arrived here ``at``."""
    skew = 0.0 if clock is None or same_machine else clock - at
    return skew if abs(skew) > SAME_CLOCK else 0.0


def was_set(skew: float, clock: float, at: float) -> bool:
    """Return whether a clock was set since the hello, by a reading that arrived here ``at``."""
    return not -LATE < clock - skew - at < EARLY
