"""An error of NCCL that torch's watchdog found: one message of several lines.

Only its first line has torch's prefix, `[rank3]:[E...`; the following hold NCCL's result, its last
warning behind `Last error:`, and the C++ stack. Source: WorkNCCL::checkAndSetException of torch
(ProcessGroupNCCL.cpp), and jobs with torch 2.11.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hangtop_core.logs.meaning.known import RAISED, recognise
from hangtop_core.logs.parsing.record import fill, kept
from hangtop_core.model.file_log import Record
from hangtop_core.text.clean import clean

if TYPE_CHECKING:
    from hangtop_core.model.file_log import Origin

MAX_LINES = 200
HOW = "async"
"""`Record.how` of an error that the watchdog found."""
_GOES_ON = ("nccl", "Last error:", "Exception raised from", "frame #")
_HEAD = re.compile(r"^.{0,200}?(?=(?:Collective |\[Rank \d+\] )?WorkNCCL\()")


class AsyncError:
    """The lines of such a message."""

    def __init__(self, order: int, line: str) -> None:
        self.order = order
        self.lines = [line]
        self._over = False

    def goes_on(self, line: str) -> bool:
        """Whether the message continues with this line; a blank line is its last."""
        if self._over or len(self.lines) >= MAX_LINES:
            return False
        if self.lines[-1].startswith("frame #"):
            return not line or line.startswith("frame #")
        # NCCL's warning may be any text.
        return not line or line.startswith(_GOES_ON) or self.lines[-1].strip() == "Last error:"

    def take(self, line: str) -> bool:
        """Take the next line."""
        if not self.goes_on(line):
            return False
        self._over = not line
        self.lines.append(line)
        return True

    def records(self) -> list[Record]:
        """Return one record, of the most specific line."""
        match = recognise("\n".join(self.lines))
        row, fields = match if match is not None and match[0].part != "info" else (None, {})
        first, *following = self.lines
        warned = [line for line in following if line and not line.startswith(_GOES_ON)]
        text = "; Last error: ".join([_HEAD.sub("", first), *warned[:1]])
        return [
            Record(
                # All reports of a lost rank are one kind of line.
                "N10" if row is None or row.part == "cascade" else row.code,
                "root" if row is None else row.part,
                clean(text, 400),
                0,
                self.order,
                means=fill(row.means, fields) if row is not None else "",
                cause=row.cause if row is not None else None,
                fields={**fields, "known": row.code} if row is not None else {},
                lines=kept([line for line in self.lines if line]),
                how=HOW,
            )
        ]


class Unprefixed:
    """The origins of such lines without torch's prefix."""

    def __init__(self) -> None:
        self._open: dict[Origin, tuple[Origin, AsyncError]] = {}

    def began(self, origin: Origin, block: AsyncError) -> None:
        """Note that an origin began a message; without prefixes, only the latest continues."""
        if origin.own:
            bare = origin._replace(own=False)
            for key in (bare, bare._replace(rank=None)):
                self._open[key] = origin, block

    def origin(self, origin: Origin, line: str) -> Origin:
        """Return the origin of a line: by its prefix, or of the message that it continues."""
        entry = self._open.get(origin) if self._open else None
        if entry is None:
            return origin
        if entry[1].goes_on(line):
            return entry[0]
        del self._open[origin]
        return origin


def begins(line: str) -> bool:
    """Whether a line is the first of such a message."""
    return RAISED in line
