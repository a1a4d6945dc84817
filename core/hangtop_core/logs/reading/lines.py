"""The lines of logs: of chosen ranks, merged over files, around a time."""

from __future__ import annotations

import heapq
import os
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.logs.parsing.owners import Owners
from hangtop_core.logs.parsing.parse import Line, Parser
from hangtop_core.logs.parsing.prefix import split
from hangtop_core.logs.parsing.record import printable
from hangtop_core.logs.parsing.stamp import stamp
from hangtop_core.logs.reading.copies import Copies, are_by_local, is_own
from hangtop_core.text.rank_sets import contains

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import BinaryIO

    from hangtop_core.logs.reading.files import Found
    from hangtop_core.model.file_log import FileLog

MAX_KEPT = 64 << 20
"""Maximum number of bytes of lines that are kept to be shown: the last ones."""
PROBE = 1 << 16
"""Bytes that are searched for a time."""


class Shown(NamedTuple):
    """A line to show."""

    rank: int | None
    node: str | None
    text: str
    """Safe to print, without prefixes of launchers."""
    local: int | None = None
    """The local rank, which may be all that is known."""
    whole: str = ""
    """The line as printed, with its prefixes; untrusted."""

    def number(self, is_local: bool) -> int | None:
        """Return the local or the global rank."""
        return self.local if is_local else self.rank

    @property
    def owner(self) -> str:
        """`3`; `local 1` where only that is known; `-` for lines of no rank."""
        if self.rank is not None:
            return str(self.rank)
        return "-" if self.local is None else f"local {self.local}"


def shown_as(owners: Owners, number: int, line: Line) -> Shown:
    """Return a line as it is shown; a quotation of another rank keeps its prefix."""
    quoted = owners.quoted(number, line.origin)
    return Shown(
        owners.rank(number, line.origin),
        owners.node(number, line.origin),
        printable(line.text if quoted is None else f"[rank{quoted}]: {line.text}"),
        owners.local(number, line.origin),
        line.whole,
    )


class Choice(NamedTuple):
    """A filter of lines."""

    ranks: frozenset[int] | None = None
    node: str | None = None
    grep: re.Pattern[str] | None = None

    def takes(self, shown: Shown) -> bool:
        """Whether a line passes the filter."""
        if self.ranks is not None and not self._is_of(shown, self.ranks):
            return False
        if self.node is not None and not _is_node(shown.node, self.node):
            return False
        return self.grep is None or any(map(self.grep.search, (shown.text, shown.whole)))

    def _is_of(self, shown: Shown, ranks: frozenset[int]) -> bool:
        """Whether a line is of a chosen rank, or of a local rank where that may be meant."""
        if shown.rank is not None and contains(ranks, shown.rank):
            return True
        if shown.local is None or shown.local not in ranks:
            return False
        # No rank on a chosen node has a number below its first rank.
        return shown.rank is None or (
            self.node is not None and shown.local < shown.rank - shown.local
        )


def _is_node(name: str | None, wanted: str) -> bool:
    """Whether a name is the wanted node's, with or without its domain."""
    if name is None or name == wanted:
        return name is not None
    short, _, tail = name.partition(".")
    asked, _, domain = wanted.partition(".")
    return short == asked and not (tail and domain) and not short.isdigit()


class Kept:
    """The last lines that were read, within `MAX_KEPT`."""

    def __init__(self) -> None:
        self._lines: deque[tuple[int, Line]] = deque()
        self._size = 0
        self.dropped = 0

    def add(self, number: int, line: Line) -> None:
        """Keep a line of a file."""
        self._lines.append((number, line))
        self._size += len(line.text) + 100
        while self._size > MAX_KEPT:
            self._size -= len(self._lines.popleft()[1].text) + 100
            self.dropped += 1

    def shown(self, files: Sequence[FileLog], choice: Choice) -> Iterator[Shown]:
        """Yield the wanted lines, merged by time over several files."""
        owners = Owners(files)
        numbers = {number for number, _ in self._lines}
        lines = self._lines if len(numbers) <= 1 else list(self._merged(numbers, files))
        own = {number for number in numbers if is_own(files[number].place)}
        copies, by_local = Copies(), are_by_local(files)
        both = own and own != numbers
        for number, line in lines if both else ():
            if number not in own:
                item = shown_as(owners, number, line)
                copies.is_copy(item.number(by_local), item.text, own=False)
        for number, line in lines:
            item = shown_as(owners, number, line)
            if (
                both
                and number in own
                and copies.is_copy(item.number(by_local), item.text, own=True)
            ):
                continue
            if choice.takes(item):
                yield item

    def _merged(
        self, numbers: Iterable[int], files: Sequence[FileLog]
    ) -> Iterator[tuple[int, Line]]:
        by_file: dict[int, list[Line]] = {number: [] for number in numbers}
        for number, line in self._lines:
            by_file[number].append(line)
        streams = [_timed(n, lines, files[n].changed or 0.0) for n, lines in by_file.items()]
        for _, number, _, line in heapq.merge(*streams, key=lambda item: item[:3]):
            yield number, line


def _timed(
    number: int, lines: Iterable[Line], near: float
) -> Iterator[tuple[float, int, int, Line]]:
    """Yield the lines of one file with their times; a line without a time has the one before."""
    at = 0.0
    for index, line in enumerate(lines):
        at = max(stamp(line.text, near) or stamp(line.time, near) or at, at)
        yield at, number, index, line


def around(path: str, at: float, seconds: float) -> tuple[int, int]:
    """Return the byte range of a file whose lines were printed within some seconds of a time.

    Uses bisection, so that a file of any size costs some dozen reads. Assumes that times rise.

    Raises:
        OSError: when the file cannot be read.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        near = os.fstat(file.fileno()).st_mtime

        def first_after(wanted: float) -> int:
            low, high = 0, size
            while high - low > PROBE:
                middle = (low + high) // 2
                place, time = _next_time(file, middle, high, near)
                if time is not None and time < wanted:
                    low = place
                else:
                    high = place if time is not None else middle
            return low

        start = _data(file, first_after(at - seconds))
        end = min(first_after(at + seconds) + 2 * PROBE, size)
    return start, max(end, min(start + PROBE, size))


def _next_time(file: BinaryIO, start: int, end: int, near: float) -> tuple[int, float | None]:
    """Return the next place between two offsets with a time, and that time.

    Long parts without times, such as tables and progress bars, are skipped in growing leaps, and a
    hole at once; the end is searched last.
    """
    place, leap = _data(file, start), PROBE
    while place < end:
        file.seek(place)
        time = _first_time(file.read(min(PROBE, end - place)), near)
        if time is not None:
            return place, time
        last = max(end - PROBE, start)
        place = min(place + leap, last) if place < last else end
        leap *= 2
    return start, None


def _data(file: BinaryIO, place: int) -> int:
    """Return the next offset outside a hole."""
    try:
        return os.lseek(file.fileno(), place, os.SEEK_DATA)
    except OSError:  # no data follows, or the file system has no holes
        return place


def timed_within(
    at: float, seconds: float, near: float, keep: Callable[[Line], None]
) -> Callable[[Line], None]:
    """Return a filter that passes only lines within some seconds of a time.

    A line without a time of its own has that of the line before it.
    """
    last = 0.0

    def keep_near(line: Line) -> None:
        nonlocal last
        last = stamp(line.text, near) or stamp(line.time, near) or last
        if abs(last - at) <= seconds:
            keep(line)

    return keep_near


def _first_time(data: bytes, near: float) -> float | None:
    for line in split(data.decode("utf-8", "replace").partition("\n")[2]):
        # Prefixes of launchers do not look like times, so the line need not be parsed.
        time = stamp(line[line.find("]:") + 2 :] if "]:" in line[:40] else line, near)
        if time is not None:
            return time
    return None


def ends_at(path: str) -> float:
    """Return the time of a file's last lines; without any, of its last change.

    Raises:
        OSError: when the file cannot be read.
    """
    with open(path, "rb") as file:
        info = os.fstat(file.fileno())
        file.seek(max(info.st_size - PROBE, 0))
        lines = split(file.read(PROBE).decode("utf-8", "replace"))
    times = (stamp(line, info.st_mtime) for line in reversed(list(lines)))
    return next((time for time in times if time is not None), info.st_mtime)


def span(source: Found, number: int, start: int, end: int, keep: Callable[[Line], None]) -> FileLog:
    """Read one byte range of a file."""
    info = os.stat(source.path)
    parser = Parser(number, info.st_mtime, keep)
    with open(source.path, "rb") as file:
        file.seek(start)
        if start:
            file.readline(PROBE)
        parser.feed(file.read(min(end - start, MAX_KEPT)).decode("utf-8", "replace"))
    parser.finish()
    return parser.log(source.path, source.place, info.st_size, info.st_mtime, whole=start == 0)
