"""Why the C++ runtime has ended a process: what it prints says so only in the next line.

`terminate called after throwing an instance of 'std::runtime_error'`, and behind `  what():  ` the
message: of torch 1.x and 2.0 that of the watchdog, which has waited in vain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hangtop_core.logs.record import Record

_TERMINATE = "T7"
_WHAT = "what():"


class Aborts:
    """The C++ exceptions that have ended processes of one stream."""

    __slots__ = ("_at", "_count", "_explained")

    def __init__(self) -> None:
        self._at: int | None = None
        """Index of the record of those of which nothing is known."""
        self._count = self._explained = 0

    def take(self, record: Record, at: int, line: str) -> None:
        """Take a known line, and the record of all that are like it, with its index."""
        if record.code == _TERMINATE and record.part == "root":
            self._at, self._count = at, self._count + 1
        elif line.lstrip().startswith(_WHAT):
            self._explained += 1

    @property
    def explained(self) -> int | None:
        """The index of the record of them, if what they say is known of all of them."""
        return self._at if self._explained >= self._count else None
