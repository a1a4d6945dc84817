"""How text reaches the terminal: its width, its colours, its characters."""

from __future__ import annotations

import os
import re
import shutil
import sys
from typing import Self

from hangtop_core.text.commands import HiddenWordError, spell

BOLD, RED, GREEN, YELLOW, DIM = "1", "1;31", "1;32", "1;33", "2"
STATES = {
    "ENDED": RED,
    "LOST": RED,
    "HUNG": RED,
    "STALLED": YELLOW,
    "SLOW": YELLOW,
    "PROGRESSING": GREEN,
    "FAILED": RED,
    "INCOMPLETE": YELLOW,
    "PASSED": GREEN,
}
HEADINGS = re.compile(
    r"  (Evidence|What to do)|Blind spots|Verdict\b.*"
    r"|What was tested|(Failure|Warning|Note): [\w-]+"
)


def opening(path: str) -> str:
    """The command that looks through a capture, as a shell takes it."""
    try:
        return spell(("hangtop", "open", f"./{path}" if path.startswith("-") else path))
    except HiddenWordError:
        return "hangtop open FILE"  # whoever gave it a name that no screen shows knows it


class StatusLine:
    """One line on stderr that says what is being waited for, and is taken away again.

    Only a terminal gets it: elsewhere a line that changes is noise.
    """

    def __init__(self) -> None:
        self.shown = sys.stderr.isatty()
        self._text = ""

    def show(self, text: str) -> None:
        """Replace what is shown."""
        if self.shown and text != self._text:
            print(text.ljust(len(self._text)), end="\r", file=sys.stderr, flush=True)
            self._text = text

    def clear(self) -> None:
        """Take the line away."""
        if self._text:
            print(" " * len(self._text), end="\r", file=sys.stderr, flush=True)
        self._text = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()


def width() -> int:
    """Columns to fill: those of the terminal, or 100 when the output goes elsewhere."""
    return shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else 100


def report_width() -> int:
    """Columns of a report of sentences: fewer, and 80 when it may be sent on."""
    return min(width(), 100) if sys.stdout.isatty() else 80


def has_colour() -> bool:
    """Whether to use colour: on a terminal, unless NO_COLOR is set (no-color.org)."""
    return (
        sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )


def draws_unicode() -> bool:
    """Whether the output can carry the characters of trees."""
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def coloured(text: str) -> str:
    """The text of a diagnosis with its state and headings marked, where colour is wanted."""
    if not has_colour():
        return text
    return "".join(map(_coloured_line, text.splitlines(keepends=True)))


def _coloured_line(line: str) -> str:
    body = line.rstrip("\n")
    state = STATES.get(body.partition(" ")[0].rstrip(":"))
    if state:
        head, colon, rest = body.partition(":" if ": " in body else "\n")
        return f"\x1b[{state}m{head}\x1b[0m{colon}{rest}\n"
    if HEADINGS.fullmatch(body):
        return f"\x1b[{BOLD}m{body}\x1b[0m\n"
    return line
