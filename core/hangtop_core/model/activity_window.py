"""CPU use and ended waits of a process over the last several steps of its job."""

from __future__ import annotations

from msgspec import Struct

SPAN_S = 12.0
"""Length of the window in seconds; the window covers one to two times this."""


class Lately(Struct, frozen=True, gc=False):
    """Recent CPU use and ended waits of a process."""

    share: float
    """Cores used, on average."""
    left: int
    """Number of readings between which the main thread left its wait."""
    span_s: float
    """Length of the window in seconds."""


class ActivityWindow:
    """Compute the activity window from two alternating marks."""

    __slots__ = ("_left", "_marks", "recent")

    def __init__(self) -> None:
        self.recent: Lately | None = None
        self._left = 0
        self._marks: list[tuple[float, float, int]] = []

    def leaves(self) -> None:
        """Note that the main thread has left its wait."""
        self._left += 1

    def see(self, at: float, cpu_s: float) -> None:
        """Record a reading: its time, and the CPU seconds since the process started."""
        marks = self._marks
        if not marks or at - marks[-1][0] >= SPAN_S:
            marks.append((at, cpu_s, self._left))
            del marks[:-2]
        since, before, left = marks[0]
        if at - since >= SPAN_S:
            share = round(max(cpu_s - before, 0.0) / (at - since), 2)
            self.recent = Lately(share, self._left - left, round(at - since))
