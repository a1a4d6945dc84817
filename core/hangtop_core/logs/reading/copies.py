"""Detection of lines that occur twice: in the file of a rank and in its launcher's output. Pure.

torchrun --tee writes a rank's output to a file, and copies it from there to its own output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hangtop_core.model.file_log import FileLog, Place

MAX_AHEAD = 200_000
"""Maximum number of lines that wait for their copies; beyond that there are no copies."""


class Copies:
    """The lines that have been read already."""

    def __init__(self) -> None:
        self._ahead: dict[tuple[int, str], int] = {}
        """By line: how many more copies launchers have printed than the ranks' files hold; below 0,
        how many fewer."""

    def is_copy(self, rank: int | None, text: str, own: bool) -> bool:
        """Whether the other source has already given this line.

        Args:
            rank: the global or the local rank, see `are_by_local`.
            text: the line.
            own: whether it is from the file of its rank.
        """
        if rank is None:
            return False
        step = -1 if own else 1
        before = self._ahead.pop((rank, text), 0)
        if before + step and len(self._ahead) < MAX_AHEAD:
            self._ahead[rank, text] = before + step
        return before * step < 0


def is_own(place: Place) -> bool:
    """Whether a file belongs to one rank."""
    return place.rank is not None or place.local is not None


def are_by_local(files: Iterable[FileLog]) -> bool:
    """Whether the names of files give local ranks, as torchrun's do.

    Then the global ranks of these files may be known, but not those of the launcher's lines.
    """
    return any(file.place.local is not None for file in files)
