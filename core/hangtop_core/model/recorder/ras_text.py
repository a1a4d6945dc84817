"""Parser of the text that RAS prints for people: the only form before NCCL 2.28.7.

A report has tables, then sections with a heading over a line of `=`: `Errors` with INCOMPLETE and
DEAD, `Warnings` with MISMATCH (NCCL: src/ras/client_support.cc of 2.24 to 2.30; the examples of its
user guide, troubleshooting/ras). Unknown lines are skipped.
"""

from __future__ import annotations

import re

from msgspec import Struct, field

from hangtop_core.model.recorder.ras import (
    LISTED,
    MAX_TEXT,
    BadReportError,
    Communicator,
    Level,
    Lost,
    Member,
    Ras,
    Status,
)
from hangtop_core.text.clean import clean

MAX_LINE = 4096
MAX_COMMUNICATORS = 100_000

_VERSION = re.compile(r"NCCL version (\S{1,40})")
_ROW = re.compile(
    r"\s*(\d{1,9})(?:\s+[\d-]{1,24}){3}\s+(\d{1,9})\s+(\d{1,9})\s+([A-Z|]+)\s+([A-Z|]+)"
)
_TITLE = re.compile(r"#(\d{1,9})-(\d{1,9}) \(([0-9a-fx]{1,40})\) ([A-Z]+)")
_DIFFERENT = re.compile(r"\s+Communicator ranks have different (?:(\w{1,40}) )?operation counts")
_LAUNCHED = re.compile(r"\s+(\d{1,9}) ranks? ha(?:ve|s) launched up to operation (\d{1,20})")
_NONE = re.compile(r"\s+(\d{1,9}) ranks? ha(?:ve|s) not launched any operations")
_STATUS = re.compile(r"\s+(\d{1,9}) ranks? ha(?:ve|s) status ([A-Z|]{1,40})")
_RANK = re.compile(r"(?<!\s)\s+Rank (\d{1,9})\b(.*)")
_ONE_MISSING = re.compile(r"\s+The missing rank: (\d{1,9})")
_SINGLE_COUNT = re.compile(r" has launched up to operation (\d{1,20})| has not launched any")
_SINGLE_STATUS = re.compile(r" has status ([A-Z|]{1,40})")
_PROCESS = re.compile(r"process (\d{1,9}) on node (\S{1,80})", re.IGNORECASE)
_GPU = re.compile(r"GPUs? (\d{1,4})")
_FEW_LOST = re.compile(r"\s+Missing communicator data from (\d{1,9}) rank")
_TIMEOUTS = re.compile(r"\s+Encountered (\d{1,9}) communication timeout")


class _Set(Struct):
    """A set of ranks with the same value."""

    op: str
    value: int | str
    size: int
    members: list[Member] = field(default_factory=list)


class _Parsed(Struct):
    """Parsed data of one communicator."""

    size: int
    lost: dict[int, Member] = field(default_factory=dict)
    lost_count: int = 0
    levels: list[_Set] = field(default_factory=list)
    statuses: list[_Set] = field(default_factory=list)

    def whole(self, name: str) -> Communicator:
        return Communicator(
            name,
            self.size,
            tuple(Lost(member) for member in self.lost.values()),
            max(self.lost_count, len(self.lost)),
            tuple(
                Level(level.op, int(level.value), level.size, tuple(level.members))
                for level in sorted(self.levels, key=lambda level: (level.op, -int(level.value)))
            ),
            tuple(
                Status(str(status.value), status.size, tuple(status.members))
                for status in sorted(self.statuses, key=lambda status: -status.size)
            ),
        )


def from_text(text: str, at: float = 0.0) -> Ras:
    """Read an answer to `STATUS` or `VERBOSE STATUS`.

    Raises:
        BadReportError: the text is no such report.
    """
    if len(text) > MAX_TEXT:
        raise BadReportError(f"has more than {MAX_TEXT >> 20} million characters")
    reader = _Reader()
    for line in text.splitlines():
        reader.take(line[:MAX_LINE])
    if reader.version is None or "Communicators..." not in text:
        raise BadReportError("has neither the version nor the communicators that RAS tells")
    alike = tuple(
        Communicator("", size, statuses=(Status(status, size),))
        for size, count, status, errors in reader.rows.values()
        if errors == "OK"
        for _ in range(min(count, 8))
    )
    return Ras(
        at=at,
        version=clean(reader.version, 40),
        form="text",
        communicators=(
            *(communicator.whole(name) for name, communicator in reader.parsed.items()),
            *alike,
        ),
        lost=tuple(reader.lost.values()),
        timeouts=reader.timeouts,
        whole="\nWarnings\n" in text,
    )


class _Reader:
    """Parses a report line by line."""

    def __init__(self) -> None:
        self.version: str | None = None
        self.rows: dict[int, tuple[int, int, str, str]] = {}
        """Groups of equal communicators: ranks, count, status, errors."""
        self.parsed: dict[str, _Parsed] = {}
        self.lost: dict[tuple[str, int], Lost] = {}
        self.timeouts = 0
        self._title = ""
        self._now: _Parsed | None = None
        self._op = ""
        self._set: _Set | None = None

    def take(self, line: str) -> None:
        """Read one line."""
        if self.version is None and (match := _VERSION.match(line)):
            self.version = match[1]
        elif match := _TITLE.match(line):
            self._begin(match)
        elif line and not line[0].isspace():
            self._title, self._now, self._set = line, None, None
        elif match := _ROW.fullmatch(line):
            number, size, ranks, status, errors = match.groups()
            many = int(ranks) // max(int(size), 1)
            self.rows[int(number)] = (int(size), many, status, errors)
        elif match := _TIMEOUTS.match(line):
            self.timeouts = int(match[1])
        elif self._now is not None:
            self._inside(self._now, line)
        elif self._title in ("INCOMPLETE", "DEAD") and (match := _PROCESS.search(line)):
            self._process(match, line)

    def _begin(self, match: re.Match[str]) -> None:
        group, _, name, self._title = match.groups()
        row = self.rows.get(int(group))
        self._set, self._now, self._op = None, None, ""
        if name in self.parsed or len(self.parsed) < MAX_COMMUNICATORS:
            self._now = self.parsed.setdefault(name, _Parsed(row[0] if row else 0))

    def _process(self, match: re.Match[str], line: str) -> None:
        pid, host = int(match[1]), clean(match[2], 80)
        if len(self.lost) < LISTED:
            gpu = _GPU.search(line)
            member = Member(-1, host, pid, int(gpu[1]) if gpu else -1)
            self.lost[host, pid] = Lost(member, self._title == "DEAD")

    def _inside(self, now: _Parsed, line: str) -> None:
        if match := _DIFFERENT.match(line):
            self._op = "" if match[1] in (None, "collective") else match[1]
        elif match := _LAUNCHED.match(line):
            self._set = _Set(self._op, int(match[2]), int(match[1]))
            now.levels.append(self._set)
        elif match := _NONE.match(line):
            self._set = _Set(self._op, 0, int(match[1]))
            now.levels.append(self._set)
        elif match := _STATUS.match(line):
            self._set = _Set("", match[2], int(match[1]))
            now.statuses.append(self._set)
        elif match := _FEW_LOST.match(line):
            now.lost_count = int(match[1])
        elif match := _ONE_MISSING.match(line):
            now.lost.setdefault(int(match[1]), Member(int(match[1])))
        elif match := _RANK.match(line):
            self._rank(now, int(match[1]), match[2])

    def _rank(self, now: _Parsed, rank: int, text: str) -> None:
        where, gpu = _PROCESS.search(text), _GPU.search(text)
        member = Member(
            rank,
            clean(where[2], 80) if where else "",
            int(where[1]) if where else -1,
            int(gpu[1]) if gpu else -1,
        )
        if self._title == "INCOMPLETE":
            if len(now.lost) < LISTED:
                now.lost[rank] = member
        elif match := _SINGLE_COUNT.match(text):
            now.levels.append(_Set(self._op, int(match[1] or 0), 1, [member]))
        elif match := _SINGLE_STATUS.match(text):
            now.statuses.append(_Set("", match[1], 1, [member]))
        elif self._set is not None and len(self._set.members) < min(self._set.size, LISTED):
            self._set.members.append(member)
