"""What parsing gives: a record for everything of note that was printed, and who printed it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from hangtop_core.analysis.frames import package
from hangtop_core.logs.known import Part
from hangtop_core.logs.prefix import Origin
from hangtop_core.text import clean, shorten, signal_name

KEPT_LINES = 60
"""Lines of one record that are kept, the first and the last of them."""
KEPT_CHARS = 2000
"""Characters of one kept line."""

_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)*")
_BLANKS = re.compile(r" {2,}")
_OPTIONAL = re.compile(r"\[([^\[\]]*)\]")
_RUNS = re.compile(r"( {2,})")


class Call(Struct, frozen=True, gc=False):
    """One frame of a printed traceback."""

    file: str
    line: int
    name: str

    @property
    def text(self) -> str:
        """`train.py:41 (step)`."""
        return f"{self.file.rpartition('/')[2]}:{self.line} ({self.name})"


class After(Struct, frozen=True, gc=False):
    """What a process has printed after an error, as far as it was looked at."""

    lines: int = 0
    """Lines that a process does not print while it ends."""
    chars: int = 0
    until: float | None = None
    """The latest time that one of them tells."""
    said: str = ""
    """The first of them, safe to print."""


class Again(Struct, frozen=True, gc=False):
    """The last time that a stream has printed the same."""

    order: int
    at: float | None
    exact: bool


class Record(Struct, frozen=True):
    """Something of note that one stream of one file has printed."""

    code: str
    """Of `known.KNOWN`; `traceback` and `exit` (torchrun's summary) for what has many lines."""
    part: Part
    text: str
    """What it says, in one line, safe to print."""
    file: int
    """Number of the file among those read."""
    order: int
    """Which line of what was read of the file, from 1."""
    origin: Origin = Origin()
    means: str = ""
    cause: str | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    """As printed, without prefixes of launchers; safe to print."""
    calls: tuple[Call, ...] = ()
    """Of a traceback, innermost last."""
    at: float | None = None
    exact: bool = False
    """Whether `at` is its own time; else it is that of a line shortly before."""
    count: int = 1
    """How often this stream has printed it."""
    again: Again | None = None
    """When it has printed it last, of what a program may survive."""
    how: str = ""
    """Of a traceback: who printed it, as the line before tells; see `blocks.HOW`."""
    after: After | None = None
    """What came after the last time."""
    sure: float = 0.9
    """How sure it is that what ends a process has ended this one, see `ended`."""
    rank: int | None = None
    """Whom it is about: who printed it, or whom the line names."""
    node: str | None = None

    @property
    def where(self) -> Call | None:
        """The innermost frame of a traceback that is in no library."""
        own = [call for call in self.calls if package(call.file) is None]
        return own[-1] if own else (self.calls[-1] if self.calls else None)

    @property
    def from_where(self) -> str:
        """` at train.py:41 (step)`, for sentences; empty where no traceback tells it."""
        return f" at {self.where.text}" if self.where is not None else ""

    @property
    def shape(self) -> tuple[str, str, str]:
        """What equal records of several ranks have in common."""
        where = f"{self.where.file}:{self.where.line}" if self.where else ""
        if self.code in ("T2", "T5"):
            # Its numbers are what it is about.
            return self.code, self.means, where
        text = self.fields.get("known") or (self.means if self.code == "T16" else self.text)
        return self.code, normal(text)[:300], where


def printable(line: str) -> str:
    """A line that is safe to print, with its blanks: tables and boxes stay straight."""
    body = line.lstrip(" \t")
    lead = line[: len(line) - len(body)].replace("\t", "    ")[:80]
    if "  " not in body or "\x1b" in body:
        return lead + clean(body, KEPT_CHARS)
    parts = _RUNS.split(body[: 2 * KEPT_CHARS].rstrip())
    straight = (one if one[:1] == " " else clean(one, KEPT_CHARS) for one in parts)
    return lead + shorten("".join(straight), KEPT_CHARS)


def kept(lines: list[str]) -> tuple[str, ...]:
    """The lines of a record that are kept."""
    if len(lines) > KEPT_LINES:
        half = KEPT_LINES // 2
        left = len(lines) - 2 * half
        lines = [*lines[:half], f"    ... {left} more lines", *lines[-half:]]
    return tuple(printable(line) for line in lines)


def lines_at(record: Record, texts: Sequence[str], at: int) -> int:
    """How many of these lines, from one on, are those of a record; 0 where they are others."""
    lines = record.lines
    if len(lines) <= KEPT_LINES:
        return len(lines) if tuple(texts[at : at + len(lines)]) == lines else 0
    half = KEPT_LINES // 2
    left = int(lines[half].split()[1])
    begin, end = tuple(texts[at : at + half]), at + half + left
    same = begin == lines[:half] and tuple(texts[end : end + half]) == lines[half + 1 :]
    return 2 * half + left if same else 0


def normal(text: str) -> str:
    """A text without its numbers and addresses, in which ranks differ that say the same."""
    return _NUMBERS.sub("N", text)


def fill(template: str, fields: Mapping[str, str]) -> str:
    """A row's meaning with the fields of a line; what it lacks leaves nothing (`Known.means`)."""
    text = _OPTIONAL.sub(lambda part: part[1] if _told(part[1], fields) else "", template)
    for name in re.findall(r"{(\w+)}", template):
        text = text.replace(f"{{{name}}}", fields.get(name, "").strip())
    text = re.sub(r"\(\s*\)|:\s*$", "", _BLANKS.sub(" ", text))
    return clean(text.replace(" ,", ",").replace(" :", ":"), 400)


def _told(part: str, fields: Mapping[str, str]) -> bool:
    return any(fields.get(name) for name in re.findall(r"{(\w+)}", part))


def ending(status: int) -> str:
    """`SIGKILL` for a negative exit status, `exit status 1` for another."""
    return f"exit status {status}" if status >= 0 else signal_name(-status)
