"""Tracebacks that are drawn: rich's boxes, and the margins of exception groups. Pure.

Rich (rich/traceback.py, 10 to 15) puts the frames of each exception in a box, as wide as the
terminal or 100 columns, and the exception below it, wrapped at words; `RichHandler` indents all of
it. A frame begins with `FILE:LINE in NAME` between two empty rows, wrapped, too. In ASCII output
the box consists of `+`, `-` and `|`. Sub-exceptions of a group are boxes in a box.

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
"""The beginning of a line that names an exception."""
CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
TITLE = "─ Traceback ("
"""The title of a box, which may be too narrow for all of it."""
_BEGIN = re.compile(
    rf"\s*(?:(?:[╭+][─-]+ |\+ Exception Group )?{re.escape(TRACEBACK)}|╭─*{re.escape(TITLE)})"
)
_BOX = re.compile(r"[╭+][─-]")
_MARGIN = re.compile(r"(?<!\s)\s*[|+] ?")
_NUMBERED = re.compile(r"-\+-+ |-+ (?:\d|\.)")
_HOLDS = re.compile(r"\(\d{1,9} sub-exceptions?\)$")
_FRAME = re.compile(r"(.{1,1000}?):(\d{1,9}) ?in (\S.{0,199})")
_LOGGED = re.compile(r"\[?(?:[IWEF]\d{3,4} |\d{1,4}[-/:]\d\d[-/:]\d\d)")
"""The beginning of a logger's line."""
_NO_FRAME = (*" ╭│╰❱0123456789", "+-")
"""Beginnings of other rows in a box: lines of code, values of variables."""
_EDGES = ("╭", "│", "╰", "+-")
LEVELS = 8
"""Maximum depth of nested boxes."""
MAX_ROWS = 8
"""Maximum number of rows over which a file name is wrapped."""


def opens(line: str) -> bool:
    """Whether a line contains the beginning of a traceback."""
    return TRACEBACK in line or TITLE in line


def look_of(line: str) -> Look:
    """Return the style of the traceback that this line begins."""
    before = _before(line)
    if before.endswith("+ Exception Group "):
        return "group"
    return "box" if before.endswith(("─ ", "- ")) and _BOX.search(before) else "plain"


def indent_of(line: str) -> int:
    """Return the indentation of a traceback, by a logger or a progress bar before it."""
    before = _before(line)
    if look_of(line) == "box":
        match = _BOX.search(before)
        return match.start() if match is not None else 0
    return len(before) if before.isspace() else 0


def _before(line: str) -> str:
    return line.partition("Traceback (")[0]


def is_row(text: str, look: Look) -> bool:
    """Whether a line is drawn: a row of a box, or one with a margin."""
    if look == "box":
        return text.startswith((*_EDGES, "| "))
    return look == "group" and text.lstrip().startswith(("|", "+"))


def begins(text: str) -> bool:
    """Whether a row begins a traceback that is inside no other."""
    return opens(text) and _BEGIN.match(text) is not None


def holds_others(exception: str) -> bool:
    """Whether an exception is a group."""
    return _HOLDS.search(exception[-40:].rstrip()) is not None


def wraps(above: str, text: str, width: int) -> bool:
    """Whether a line continues the one above, which was too full for its first word."""
    used = len(above.rstrip())
    if _LOGGED.match(text) is not None:
        return False
    return used <= width < used + 1 + len(text[: width + 1].split(" ", 1)[0])


def joint(above: str, width: int) -> str:
    """Return the separator between a wrapped row and the next: none where a long word is cut."""
    above = above.rstrip()
    return "" if len(above) == width and " " not in above else " "


class Inside:
    """Find the exceptions in rows: sub-exceptions of groups, and a group that has a margin."""

    def __init__(self, look: Look, exceptions: list[str]) -> None:
        """Begin a traceback; its exceptions are appended to ``exceptions``."""
        self.first: int | None = None
        """Number of the first exception that is no group, or of the one raised while handling
        it."""
        self._look = look
        self._exceptions = exceptions
        self._sub = look == "group"
        self._next = look == "group"
        """Whether the next row may be an exception."""
        self._chained = False
        self._above = ""
        """The previous row, if its exception may continue in this one."""
        self._width = 0
        """Width of the rows of the current box."""

    def take(self, row: str) -> bool:
        """Take a row; return whether it names an exception."""
        text, above = self._text(row), self._above
        self._above = ""
        if text in CHAINED:
            self._chained = True
        if above and not text.startswith(_EDGES) and wraps(above, text, self._width):
            self._exceptions[-1] += joint(above, self._width) + text
            self._above = text
        if not self._next or EXCEPTION.match(text) is None:
            return False
        number = len(self._exceptions)
        if self.first is None:
            self.first = None if holds_others(text) else number
        elif self._chained and self.first == number - 1:
            self.first = number
        self._exceptions.append(text)
        self._next = self._chained = False
        self._above = text if self._look == "box" else ""
        return True

    def _text(self, row: str) -> str:
        """Return the text of a row without its drawing."""
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
    """Return the number of boxes around a row, and the text inside."""
    text, levels = row.rstrip(), 0
    while levels < LEVELS and text.startswith(("│ ", "| "), 2 * levels):
        levels += 1
    text = text[2 * levels :]
    for _ in range(levels):
        text = text.removesuffix("│").removesuffix("|").rstrip()
    return levels, text


def frames(lines: Sequence[str], indent: int) -> Iterator[Call]:
    """Yield the frames in the boxes of a traceback, innermost last.

    Rich omits the file of a frame that it cannot find; such frames are left out.
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
    """Yield the frame that the rows between two empty ones name, if any."""
    if not head or head[0].startswith(_NO_FRAME):
        return
    text = head[0]
    for above, row in pairwise(head):
        text += joint(above, width) + row
    match = _FRAME.fullmatch(text)
    if match is not None:
        yield Call(clean(match[1], 400), int(match[2]), clean(match[3], 120))
