"""What was read of one log file, as nouns: its records, and who has printed to it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

from msgspec import Struct, field

from hangtop_core.model.frames import package

MAX_DIGITS = 9
"""Of the number of a rank: longer ones are made up, and no format for numbers takes them."""
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)*")
Part = Literal["root", "timeout", "cascade", "exit", "survived", "error", "info"]
"""What a line says of the failure. root: an error of its own. timeout: it has waited in vain for
others. cascade: it only tells of somebody else's end. exit: a process has left with an error that
is told elsewhere. survived: an error after which who printed it went on, see `ended`. error: some
error, of which nothing is known. info: what was set up, and how."""


class Origin(NamedTuple):
    """Who printed a line, as far as its prefixes tell."""

    rank: int | None = None
    """The global rank."""
    local: int | None = None
    """Rank on its node."""
    node: str | None = None
    task: int | None = None
    """Number of srun's label: a rank, or a node where a launcher is inside."""
    std: str | None = None
    """stdout or stderr, where told."""
    own: bool = False
    """Whether the line carries torch's own `[rank3]:`, which any program may print."""
    group: str | None = None
    """What else tells streams apart: role, pod, pid of a Ray worker."""
    said: int | None = None
    """The rank by the program's own words, which stand in the line: see `own_words`."""
    label: int | None = None
    """The rank by a launcher's label before torch's own prefix, which may tell another."""

    def with_said(self, rank: int | None) -> Origin:
        """Return it with a rank by the program's own words, where they tell one."""
        return self if rank is None else self._replace(said=rank)


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


def normal(text: str) -> str:
    """A text without its numbers and addresses, in which ranks differ that say the same."""
    return _NUMBERS.sub("N", text)


class Place(Struct, frozen=True):
    """Who has printed a whole file, as its name or its process tells."""

    rank: int | None = None
    local: int | None = None
    node: str | None = None
    std: str | None = None
    attempt: int | None = None
    """How often torchrun had started its ranks again."""
    guess: bool = False
    """Whether the name may as well number something else: tasks, of which each runs torchrun."""


class Stream(Struct, frozen=True):
    """One of those who print to a file."""

    origin: Origin
    lines: int = 0
    last: str = ""
    """Its last line, safe to print."""
    at: float | None = None
    """When that was printed, where it says so."""
    since: float | None = None
    """The newest time that any of its lines tells."""
    order: int = 0
    """Which line of what was read of the file its last one is, from 1."""


class FileLog(Struct, frozen=True):
    """What was read of one file."""

    path: str
    place: Place = Place()
    size: int = 0
    changed: float | None = None
    records: tuple[Record, ...] = ()
    streams: tuple[Stream, ...] = ()
    """Who has printed to it."""
    locals: tuple[tuple[int, int], ...] = ()
    """Global ranks by local rank, of what a launcher prints whose processes are known."""
    absent: frozenset[int] = frozenset()
    """Ranks that may have printed to it as well, and left before anybody looked."""
    lines: int = 0
    left: tuple[tuple[int, int], ...] = ()
    """Byte ranges that were neither read nor searched for errors."""
    problem: str | None = None
    """Why it could not be read, or not to its end."""
    left_out: int = 0
    """Lines of note beyond those of which a record is kept."""
    whole: bool = True
    """Whether every line was read: else numbers of lines are not those of the file."""
