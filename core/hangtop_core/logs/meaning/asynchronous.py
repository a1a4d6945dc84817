"""An error of NCCL that torch's watchdog has found: one message of several lines.

Its first line has torch's prefix, `[rank3]:[E...`, and the others have none: the result of NCCL,
its last warning behind `Last error:`, and the C++ stack. Source: WorkNCCL::checkAndSetException of
torch (ProcessGroupNCCL.cpp), and jobs with torch 2.11.
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
"""`Record.how` of what the watchdog has found."""
_GOES_ON = ("nccl", "Last error:", "Exception raised from", "frame #")
_HEAD = re.compile(r"^.{0,200}?(?=(?:Collective |\[Rank \d+\] )?WorkNCCL\()")


class AsyncError:
    """The lines of one such message."""

    def __init__(self, order: int, line: str) -> None:
        self.order = order
        self.lines = [line]
        self._over = False

    def goes_on(self, line: str) -> bool:
        """Whether the message goes on with this line; a blank one is its last."""
        if self._over or len(self.lines) >= MAX_LINES:
            return False
        if self.lines[-1].startswith("frame #"):
            return not line or line.startswith("frame #")
        # What NCCL has warned of is any text.
        return not line or line.startswith(_GOES_ON) or self.lines[-1].strip() == "Last error:"

    def take(self, line: str) -> bool:
        """Take the next line."""
        if not self.goes_on(line):
            return False
        self._over = not line
        self.lines.append(line)
        return True

    def records(self) -> list[Record]:
        """One record, of the most telling line."""
        found = recognise("\n".join(self.lines))
        row, fields = found if found is not None and found[0].part != "info" else (None, {})
        first, *rest = self.lines
        warned = [line for line in rest if line and not line.startswith(_GOES_ON)]
        text = "; Last error: ".join([_HEAD.sub("", first), *warned[:1]])
        return [
            Record(
                # Whatever tells that another rank is lost is one kind of line.
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
    """Knows whose the lines of such messages are that have no prefix of torch's."""

    def __init__(self) -> None:
        self._open: dict[Origin, tuple[Origin, AsyncError]] = {}

    def began(self, origin: Origin, block: AsyncError) -> None:
        """Note that somebody has begun one: of several without a prefix the last one goes on."""
        if origin.own:
            bare = origin._replace(own=False)
            for one in (bare, bare._replace(rank=None)):
                self._open[one] = origin, block

    def origin(self, origin: Origin, line: str) -> Origin:
        """Who has printed a line: as its prefix says, or whose message it goes on with."""
        known = self._open.get(origin) if self._open else None
        if known is None:
            return origin
        if known[1].goes_on(line):
            return known[0]
        del self._open[origin]
        return origin


def begins(line: str) -> bool:
    """Whether a line is the first of such a message."""
    return RAISED in line
