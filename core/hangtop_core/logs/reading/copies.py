"""Lines that are read twice: from the file of a rank, and as its launcher has copied them. Pure.

torchrun --tee writes what a rank prints to a file, and copies it from there to its own output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hangtop_core.model.file_log import FileLog, Place

MAX_AHEAD = 200_000
"""Lines that may wait for their copies; where more do, there are none."""


class Copies:
    """Knows which lines there have been already."""

    def __init__(self) -> None:
        self._ahead: dict[tuple[int, str], int] = {}
        """By line: how often launchers have printed it more often than the files of ranks, or less
        often where below 0."""

    def is_copy(self, whose: int | None, text: str, own: bool) -> bool:
        """Whether a line was there from the other side.

        Args:
            whose: the global or the local rank, see `are_by_local`.
            text: the line.
            own: whether it is of the file of its rank.
        """
        if whose is None:
            return False
        step = -1 if own else 1
        before = self._ahead.pop((whose, text), 0)
        if before + step and len(self._ahead) < MAX_AHEAD:
            self._ahead[whose, text] = before + step
        return before * step < 0


def is_own(place: Place) -> bool:
    """Whether a file is that of one rank."""
    return place.rank is not None or place.local is not None


def are_by_local(files: Iterable[FileLog]) -> bool:
    """Whether the files of ranks tell local ones, as torchrun names them.

    Global ones may be known of those, and not of the lines that a launcher has copied.
    """
    return any(one.place.local is not None for one in files)
