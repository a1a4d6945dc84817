"""Contents of one log file: its records, and the processes that printed to it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

from msgspec import Struct, field

from hangtop_core.model.frames import package

MAX_DIGITS = 9
"""Most digits of a rank number: longer ones are made up, and no number format takes them."""
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)*")
Part = Literal["root", "timeout", "cascade", "exit", "survived", "error", "info"]
"""How a log line relates to the failure. root: an error of its own. timeout: a wait for other ranks
that timed out. cascade: a consequence of another process's end. exit: a process exited with an
error that is printed elsewhere. survived: an error after which the printing process went on, see
`ended`. error: an error of which nothing more is known. info: setup messages."""


class Origin(NamedTuple):
    """The process that printed a line, as far as the line's prefixes name it."""

    rank: int | None = None
    """The global rank."""
    local: int | None = None
    """Rank on its node."""
    node: str | None = None
    task: int | None = None
    """Number of srun's label: a rank, or a node where a launcher runs inside the task."""
    std: str | None = None
    """stdout or stderr, where the prefix names it."""
    own: bool = False
    """Whether the line carries torch's own `[rank3]:`, which any program may print."""
    group: str | None = None
    """Further labels that distinguish streams: role, pod, pid of a Ray worker."""
    said: int | None = None
    """The rank in the program's own words in the line; see `own_words`."""
    label: int | None = None
    """The rank in a launcher's label before torch's own prefix, which may differ."""

    def with_said(self, rank: int | None) -> Origin:
        """Return this origin with a rank from the program's own words, unless ``rank`` is None."""
        return self if rank is None else self._replace(said=rank)


class Call(Struct, frozen=True, gc=False):
    """One frame of a printed traceback."""

    file: str
    line: int
    name: str

    @property
    def text(self) -> str:
        """Return `train.py:41 (step)`."""
        return f"{self.file.rpartition('/')[2]}:{self.line} ({self.name})"


class After(Struct, frozen=True, gc=False):
    """What a process printed after an error, as far as the log was read."""

    lines: int = 0
    """Number of lines, without those that a process prints while it ends."""
    chars: int = 0
    until: float | None = None
    """The latest timestamp in them."""
    said: str = ""
    """The first of these lines, safe to print."""


class Again(Struct, frozen=True, gc=False):
    """The last time that a stream printed the same record."""

    order: int
    at: float | None
    exact: bool


class Record(Struct, frozen=True):
    """One notable message that one stream of one file printed."""

    code: str
    """Code in `known.KNOWN`; `traceback` and `exit` (torchrun's summary) for records of many
    lines."""
    part: Part
    text: str
    """The message in one line, safe to print."""
    file: int
    """Number of the file among the files read."""
    order: int
    """Line number among the lines read of the file, from 1."""
    origin: Origin = Origin()
    means: str = ""
    cause: str | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    """The lines as printed, without prefixes of launchers; safe to print."""
    calls: tuple[Call, ...] = ()
    """Frames of a traceback, innermost last."""
    at: float | None = None
    exact: bool = False
    """Whether `at` is the record's own timestamp; otherwise it is that of a line shortly before."""
    count: int = 1
    """How often this stream printed the record."""
    again: Again | None = None
    """When the stream last printed the record, for errors that a program may survive."""
    how: str = ""
    """For a traceback: how it was printed, by the line before it; see `blocks.HOW`."""
    after: After | None = None
    """What followed the last occurrence."""
    sure: float = 0.9
    """Probability that an error of this kind ended the process; see `ended`."""
    rank: int | None = None
    """The rank that the record is about: its printer, or the rank that the line names."""
    node: str | None = None

    @property
    def where(self) -> Call | None:
        """Return the innermost frame of the traceback outside libraries."""
        own = [call for call in self.calls if package(call.file) is None]
        return own[-1] if own else (self.calls[-1] if self.calls else None)

    @property
    def from_where(self) -> str:
        """Return ` at train.py:41 (step)`, for sentences; empty without a traceback."""
        return f" at {self.where.text}" if self.where is not None else ""

    @property
    def shape(self) -> tuple[str, str, str]:
        """Return the key that equal records of several ranks share."""
        where = f"{self.where.file}:{self.where.line}" if self.where else ""
        if self.code in ("T2", "T5"):
            # For these codes the numbers are the subject of the message.
            return self.code, self.means, where
        text = self.fields.get("known") or (self.means if self.code == "T16" else self.text)
        return self.code, normal(text)[:300], where


def normal(text: str) -> str:
    """Return a text without numbers and addresses, in which equal messages of ranks differ."""
    return _NUMBERS.sub("N", text)


class Place(Struct, frozen=True):
    """The printer of a whole file, as its name or its process says."""

    rank: int | None = None
    local: int | None = None
    node: str | None = None
    std: str | None = None
    attempt: int | None = None
    """How often torchrun had restarted its ranks."""
    guess: bool = False
    """Whether the number in the name may mean something else: tasks that each run torchrun."""


class Stream(Struct, frozen=True):
    """One of the streams printed to a file."""

    origin: Origin
    lines: int = 0
    last: str = ""
    """The last line, safe to print."""
    at: float | None = None
    """Timestamp of the last line, where it has one."""
    since: float | None = None
    """The newest timestamp in any of its lines."""
    order: int = 0
    """Line number of the last line among the lines read of the file, from 1."""


class FileLog(Struct, frozen=True):
    """The contents of one file, as far as it was read."""

    path: str
    place: Place = Place()
    size: int = 0
    changed: float | None = None
    records: tuple[Record, ...] = ()
    streams: tuple[Stream, ...] = ()
    """The streams printed to it."""
    locals: tuple[tuple[int, int], ...] = ()
    """Pairs of local and global rank, for output of a launcher whose processes are known."""
    absent: frozenset[int] = frozenset()
    """Ranks that may also have printed to the file, and left before hangtop looked."""
    lines: int = 0
    left: tuple[tuple[int, int], ...] = ()
    """Byte ranges that were neither read nor searched for errors."""
    problem: str | None = None
    """Why it could not be read, or not to its end."""
    left_out: int = 0
    """Number of notable lines for which no record is kept."""
    whole: bool = True
    """Whether every line was read; otherwise line numbers are not those of the file."""
