"""Output to the terminal: its width, its colours, its characters."""

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
    """Return the command that opens a capture, quoted for a shell."""
    try:
        return spell(("hangtop", "open", f"./{path}" if path.startswith("-") else path))
    except HiddenWordError:
        return "hangtop open FILE"  # its name is unprintable, and the user has to type it


class StatusLine:
    """One line on stderr with the current wait, removed when it is over.

    Only a terminal gets it: elsewhere a changing line is noise.
    """

    def __init__(self) -> None:
        self.shown = sys.stderr.isatty()
        self._text = ""

    def show(self, text: str) -> None:
        """Replace the line."""
        if self.shown and text != self._text:
            print(text.ljust(len(self._text)), end="\r", file=sys.stderr, flush=True)
            self._text = text

    def clear(self) -> None:
        """Remove the line."""
        if self._text:
            print(" " * len(self._text), end="\r", file=sys.stderr, flush=True)
        self._text = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()


def width() -> int:
    """Return the columns to fill: those of the terminal, or 100 when the output goes elsewhere."""
    return shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else 100


def report_width() -> int:
    """Return the columns of a report of sentences: fewer, and 80 when it is not on a terminal."""
    return min(width(), 100) if sys.stdout.isatty() else 80


def has_colour() -> bool:
    """Return whether to use colour: on a terminal, unless NO_COLOR is set (no-color.org)."""
    return (
        sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )


def draws_unicode() -> bool:
    """Return whether the output can encode the characters of trees."""
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def coloured(text: str) -> str:
    """Return the text of a diagnosis with state and headings in colour, where colour is used."""
    if not has_colour():
        return text
    return "".join(map(_coloured_line, text.splitlines(keepends=True)))


def _coloured_line(line: str) -> str:
    body = line.rstrip("\n")
    state = STATES.get(body.partition(" ")[0].rstrip(":"))
    if state:
        head, colon, remainder = body.partition(":" if ": " in body else "\n")
        return f"\x1b[{state}m{head}\x1b[0m{colon}{remainder}\n"
    if HEADINGS.fullmatch(body):
        return f"\x1b[{BOLD}m{body}\x1b[0m\n"
    return line
