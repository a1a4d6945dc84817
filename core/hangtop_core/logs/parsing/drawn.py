"""Tracebacks that are drawn: in boxes by rich, with margins where exceptions are grouped. Pure.

Rich (rich/traceback.py, 10 to 15) puts the frames of each exception in a box, as wide as the
terminal or 100 columns, and the exception below it, wrapped at words; `RichHandler` moves all of it
to the right. A frame begins with `FILE:LINE in NAME` between two empty rows, wrapped, too. Where
output is ASCII the box is of `+`, `-` and `|`. Sub-exceptions of a group are boxes in a box.

Python (3.11 and later, Lib/traceback.py) puts a margin before a group: `  | `, and before each
sub-exception a row like `  +-+---------------- 1 ----------------`.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from hangtop_core.logs.meaning.known import TRACEBACK
from hangtop_core.model.file_log import Call
from hangtop_core.text.clean import clean

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Look = Literal["plain", "box", "group"]

EXCEPTION = re.compile(r"(?:[A-Za-z_][\w.]*)(?::\s|:$|$)")
"""How a line begins that names an exception."""
CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
TITLE = "─ Traceback ("
"""Of a box, which may be too narrow for all of it."""
_BEGIN = re.compile(
    rf"\s*(?:(?:[╭+][─-]+ |\+ Exception Group )?{re.escape(TRACEBACK)}|╭─*{re.escape(TITLE)})"
)
_BOX = re.compile(r"[╭+][─-]")
_MARGIN = re.compile(r"(?<!\s)\s*[|+] ?")
_NUMBERED = re.compile(r"-\+-+ |-+ (?:\d|\.)")
_HOLDS = re.compile(r"\(\d{1,9} sub-exceptions?\)$")
_FRAME = re.compile(r"(.{1,1000}?):(\d{1,9}) ?in (\S.{0,199})")
_LOGGED = re.compile(r"\[?(?:[IWEF]\d{3,4} |\d{1,4}[-/:]\d\d[-/:]\d\d)")
"""How a line begins that a logger has printed."""
_NO_FRAME = (*" ╭│╰❱0123456789", "+-")
"""What other rows in a box begin with: lines of code, values of variables."""
_EDGES = ("╭", "│", "╰", "+-")
LEVELS = 8
"""Boxes in boxes, at most."""
MAX_ROWS = 8
"""Rows over which the name of a file is wrapped, at most."""


def opens(line: str) -> bool:
    """Whether a line holds the beginning of a traceback."""
    return TRACEBACK in line or TITLE in line


def look_of(line: str) -> Look:
    """How the traceback is drawn that this line begins."""
    before = _before(line)
    if before.endswith("+ Exception Group "):
        return "group"
    return "box" if before.endswith(("─ ", "- ")) and _BOX.search(before) else "plain"


def indent_of(line: str) -> int:
    """By how much a traceback is moved to the right: by a logger, or a progress bar before it."""
    before = _before(line)
    if look_of(line) == "box":
        found = _BOX.search(before)
        return found.start() if found is not None else 0
    return len(before) if before.isspace() else 0


def _before(line: str) -> str:
    return line.partition("Traceback (")[0]


def is_row(text: str, look: Look) -> bool:
    """Whether a line is drawn, not printed as it is: a row of a box, or one with a margin."""
    if look == "box":
        return text.startswith((*_EDGES, "| "))
    return look == "group" and text.lstrip().startswith(("|", "+"))


def begins(text: str) -> bool:
    """Whether a row begins a traceback that is in no other."""
    return opens(text) and _BEGIN.match(text) is not None


def holds_others(exception: str) -> bool:
    """Whether an exception is a group of others."""
    return _HOLDS.search(exception[-40:].rstrip()) is not None


def wraps(above: str, text: str, width: int) -> bool:
    """Whether a line goes on with the one above it: its first word had no place there."""
    used = len(above.rstrip())
    if _LOGGED.match(text) is not None:
        return False
    return used <= width < used + 1 + len(text[: width + 1].split(" ", 1)[0])


def joint(above: str, width: int) -> str:
    """What stands between a row and the one that it goes on in: a word that is longer is cut."""
    above = above.rstrip()
    return "" if len(above) == width and " " not in above else " "


class Inside:
    """Finds the exceptions in rows: sub-exceptions of groups, and a group that has a margin."""

    def __init__(self, look: Look, found: list[str]) -> None:
        """Begin a traceback; ``found`` gets what is found."""
        self.first: int | None = None
        """Number of the first that is no group, or of what was raised while it was handled."""
        self._look = look
        self._found = found
        self._sub = look == "group"
        self._next = look == "group"
        """Whether the next row may be an exception."""
        self._chained = False
        self._above = ""
        """The row before, where an exception may go on in this one."""
        self._width = 0
        """Of rows of the box that this row is in."""

    def take(self, row: str) -> bool:
        """Take a row; say whether it names an exception."""
        text, above = self._text(row), self._above
        self._above = ""
        if text in CHAINED:
            self._chained = True
        if above and not text.startswith(_EDGES) and wraps(above, text, self._width):
            self._found[-1] += joint(above, self._width) + text
            self._above = text
        if not self._next or EXCEPTION.match(text) is None:
            return False
        number = len(self._found)
        if self.first is None:
            self.first = None if holds_others(text) else number
        elif self._chained and self.first == number - 1:
            self.first = number
        self._found.append(text)
        self._next = self._chained = False
        self._above = text if self._look == "box" else ""
        return True

    def _text(self, row: str) -> str:
        """What a row says without what is drawn."""
        if self._look == "group":
            text = _MARGIN.sub("", row, count=1).rstrip()
            self._next = self._next or opens(text) or _NUMBERED.match(text) is not None
            return text
        levels, text = _bare(row)
        self._width = len(row.rstrip()) - 4 * levels
        if text.startswith(("╭", "╰", "+-")):
            self._sub = self._sub or "Sub-exception #" in text
            self._next = self._sub and not opens(text)
        return text


def _bare(row: str) -> tuple[int, str]:
    """Within how many boxes a row is, and what it says there."""
    text, levels = row.rstrip(), 0
    while levels < LEVELS and text.startswith(("│ ", "| "), 2 * levels):
        levels += 1
    text = text[2 * levels :]
    for _ in range(levels):
        text = text.removesuffix("│").removesuffix("|").rstrip()
    return levels, text


def frames(lines: Sequence[str], indent: int) -> Iterator[Call]:
    """Frames in the boxes of a traceback, innermost last.

    Rich names no file of a frame where it finds none; such frames are left out.
    """
    head: list[str] = []
    width = 0
    for line in lines:
        row = line[indent:].rstrip() if line[:indent].isspace() else line.rstrip()
        levels, text = _bare(row)
        if levels and text and not opens(text):
            width = len(row) - 4 * levels
            if len(head) < MAX_ROWS:
                head.append(text)
        else:
            yield from _frame(head, width)
            head = []


def _frame(head: Sequence[str], width: int) -> Iterator[Call]:
    """The frame that the rows between two empty ones name, if they do."""
    if not head or head[0].startswith(_NO_FRAME):
        return
    text = head[0]
    for above, row in pairwise(head):
        text += joint(above, width) + row
    found = _FRAME.fullmatch(text)
    if found is not None:
        yield Call(clean(found[1], 400), int(found[2]), clean(found[3], 120))
