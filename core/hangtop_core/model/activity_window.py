"""What a process has used and how often it left its wait, over the last several steps of a job."""

from __future__ import annotations

from msgspec import Struct

SPAN_S = 12.0
"""Seconds that are looked at, to twice as many."""


class Lately(Struct, frozen=True, gc=False):
    """What a process has done of late."""

    share: float
    """Cores that it has used."""
    left: int
    """Readings between which its main thread has left its wait."""
    span_s: float
    """Seconds of which this is told."""


class Looker:
    """Looks back to one of two readings, which are taken anew by turns."""

    __slots__ = ("_left", "_marks", "told")

    def __init__(self) -> None:
        self.told: Lately | None = None
        self._left = 0
        self._marks: list[tuple[float, float, int]] = []

    def leaves(self) -> None:
        """Note that the main thread has left its wait."""
        self._left += 1

    def see(self, at: float, cpu_s: float) -> None:
        """Take what was read: CPU seconds since the process began."""
        marks = self._marks
        if not marks or at - marks[-1][0] >= SPAN_S:
            marks.append((at, cpu_s, self._left))
            del marks[:-2]
        since, before, left = marks[0]
        if at - since >= SPAN_S:
            share = round(max(cpu_s - before, 0.0) / (at - since), 2)
            self.told = Lately(share, self._left - left, round(at - since))
