"""Why the C++ runtime has ended a process: what it prints says so only in the next line.

`terminate called after throwing an instance of 'std::runtime_error'`, and behind `  what():  ` the
message: of torch 1.x and 2.0 that of the watchdog, which has waited in vain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

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

    def take(self, records: list[Record], at: int, line: str) -> None:
        """Take a known line, of which a record is; what is explained is no error of its own."""
        if records[at].code == _TERMINATE and records[at].part == "root":
            self._at, self._count = at, self._count + 1
        elif self._at is not None and line.lstrip().startswith(_WHAT):
            self._explained += 1
        if self._at is not None and self._explained >= self._count:
            records[self._at] = msgspec.structs.replace(records[self._at], part="cascade")
