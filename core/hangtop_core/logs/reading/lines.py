"""The lines themselves: of chosen ranks, of all files in one order, around a time."""

from __future__ import annotations

import heapq
import os
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.logs.parsing.parse import Line, Parser
from hangtop_core.logs.parsing.prefix import split
from hangtop_core.logs.parsing.record import printable
from hangtop_core.logs.parsing.stamp import stamp
from hangtop_core.logs.parsing.whose import Whose
from hangtop_core.logs.reading.copies import Copies, are_by_local, is_own
from hangtop_core.text.rank_sets import contains

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import BinaryIO

    from hangtop_core.logs.reading.files import Found
    from hangtop_core.model.file_log import FileLog

MAX_KEPT = 64 << 20
"""Bytes of lines that are kept to be shown: the last ones."""
PROBE = 1 << 16
"""Bytes in which a time is looked for."""


class Shown(NamedTuple):
    """One line to show."""

    rank: int | None
    node: str | None
    text: str
    """Safe to print, without prefixes of launchers."""
    local: int | None = None
    """Its rank on its node, which may be known alone."""
    whole: str = ""
    """As it was printed, with its prefixes; untrusted."""

    def number(self, is_local: bool) -> int | None:
        """Its rank on its node, or the global one."""
        return self.local if is_local else self.rank

    @property
    def who(self) -> str:
        """`3`; `local 1` where only that is known; `-` of what no rank has printed."""
        if self.rank is not None:
            return str(self.rank)
        return "-" if self.local is None else f"local {self.local}"


def shown_as(whose: Whose, number: int, line: Line) -> Shown:
    """A line of a file as it is shown; what quotes another rank says so, as it was printed."""
    quoted = whose.quoted(number, line.origin)
    return Shown(
        whose.rank(number, line.origin),
        whose.node(number, line.origin),
        printable(line.text if quoted is None else f"[rank{quoted}]: {line.text}"),
        whose.local(number, line.origin),
        line.whole,
    )


class Choice(NamedTuple):
    """Which lines are wanted."""

    ranks: frozenset[int] | None = None
    node: str | None = None
    grep: re.Pattern[str] | None = None

    def takes(self, one: Shown) -> bool:
        """Whether a line is wanted."""
        if self.ranks is not None and not self._is_of(one, self.ranks):
            return False
        if self.node is not None and not _is_node(one.node, self.node):
            return False
        return self.grep is None or any(map(self.grep.search, (one.text, one.whole)))

    def _is_of(self, one: Shown, ranks: frozenset[int]) -> bool:
        """Whether a line is of a rank, or of a local one where that is what can be meant."""
        if one.rank is not None and contains(ranks, one.rank):
            return True
        if one.local is None or one.local not in ranks:
            return False
        # On a chosen node no rank has a number below that of its first one.
        return one.rank is None or (self.node is not None and one.local < one.rank - one.local)


def _is_node(name: str | None, wanted: str) -> bool:
    """Whether that is a node's name, be it with its domain or without."""
    if name is None or name == wanted:
        return name is not None
    short, _, rest = name.partition(".")
    asked, _, domain = wanted.partition(".")
    return short == asked and not (rest and domain) and not short.isdigit()


class Kept:
    """Keeps the lines that are read, the last ones within `MAX_KEPT`."""

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
        """The lines that are wanted; those of several files by their times."""
        whose = Whose(files)
        numbers = {number for number, _ in self._lines}
        lines = self._lines if len(numbers) <= 1 else list(self._merged(numbers, files))
        own = {number for number in numbers if is_own(files[number].place)}
        copies, by_local = Copies(), are_by_local(files)
        both = own and own != numbers
        for number, line in lines if both else ():
            if number not in own:
                one = shown_as(whose, number, line)
                copies.is_copy(one.number(by_local), one.text, own=False)
        for number, line in lines:
            one = shown_as(whose, number, line)
            if both and number in own and copies.is_copy(one.number(by_local), one.text, own=True):
                continue
            if choice.takes(one):
                yield one

    def _merged(
        self, numbers: Iterable[int], files: Sequence[FileLog]
    ) -> Iterator[tuple[int, Line]]:
        by_file: dict[int, list[Line]] = {number: [] for number in numbers}
        for number, line in self._lines:
            by_file[number].append(line)
        streams = [_timed(n, some, files[n].changed or 0.0) for n, some in by_file.items()]
        for _, number, _, line in heapq.merge(*streams, key=lambda one: one[:3]):
            yield number, line


def _timed(
    number: int, lines: Iterable[Line], near: float
) -> Iterator[tuple[float, int, int, Line]]:
    """Lines of one file with their times; one without has that of the line before it."""
    at = 0.0
    for index, line in enumerate(lines):
        at = max(stamp(line.text, near) or stamp(line.time, near) or at, at)
        yield at, number, index, line


def around(path: str, at: float, seconds: float) -> tuple[int, int]:
    """Byte range of a file whose lines were printed within some seconds of a time.

    By bisection, so that a file of any size costs some dozen reads. Assumes that times rise.

    Raises:
        OSError: when it cannot be read.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        near = os.fstat(file.fileno()).st_mtime

        def first_after(wanted: float) -> int:
            low, high = 0, size
            while high - low > PROBE:
                middle = (low + high) // 2
                place, said = _next_time(file, middle, high, near)
                if said is not None and said < wanted:
                    low = place
                else:
                    high = place if said is not None else middle
            return low

        start = _data(file, first_after(at - seconds))
        end = min(first_after(at + seconds) + 2 * PROBE, size)
    return start, max(end, min(start + PROBE, size))


def _next_time(file: BinaryIO, start: int, end: int, near: float) -> tuple[int, float | None]:
    """Where between two places of a file a time was found, and which.

    Much without times, as tables and progress bars are, is leapt over by ever more, and a hole at
    once; at last it is looked at the end.
    """
    place, leap = _data(file, start), PROBE
    while place < end:
        file.seek(place)
        said = _first_time(file.read(min(PROBE, end - place)), near)
        if said is not None:
            return place, said
        last = max(end - PROBE, start)
        place = min(place + leap, last) if place < last else end
        leap *= 2
    return start, None


def _data(file: BinaryIO, place: int) -> int:
    """The next place that is not in a hole."""
    try:
        return os.lseek(file.fileno(), place, os.SEEK_DATA)
    except OSError:  # none follows, or the file system knows no holes
        return place


def timed_within(
    at: float, seconds: float, near: float, keep: Callable[[Line], None]
) -> Callable[[Line], None]:
    """Hand on those lines only that are from some seconds around a time.

    A line without a time of its own is from that of the line before it.
    """
    last = 0.0

    def one(line: Line) -> None:
        nonlocal last
        last = stamp(line.text, near) or stamp(line.time, near) or last
        if abs(last - at) <= seconds:
            keep(line)

    return one


def _first_time(data: bytes, near: float) -> float | None:
    for line in split(data.decode("utf-8", "replace").partition("\n")[2]):
        # Prefixes of launchers do not look like times, so the line need not be taken apart.
        said = stamp(line[line.find("]:") + 2 :] if "]:" in line[:40] else line, near)
        if said is not None:
            return said
    return None


def ends_at(path: str) -> float:
    """When a file says its last lines were printed; else when it was last written to.

    Raises:
        OSError: when it cannot be read.
    """
    with open(path, "rb") as file:
        info = os.fstat(file.fileno())
        file.seek(max(info.st_size - PROBE, 0))
        lines = split(file.read(PROBE).decode("utf-8", "replace"))
    times = (stamp(line, info.st_mtime) for line in reversed(list(lines)))
    return next((said for said in times if said is not None), info.st_mtime)


def span(found: Found, number: int, start: int, end: int, keep: Callable[[Line], None]) -> FileLog:
    """Read one byte range of a file."""
    info = os.stat(found.path)
    parser = Parser(number, info.st_mtime, keep)
    with open(found.path, "rb") as file:
        file.seek(start)
        if start:
            file.readline(PROBE)
        parser.feed(file.read(min(end - start, MAX_KEPT)).decode("utf-8", "replace"))
    parser.finish()
    return parser.log(found.path, found.place, info.st_size, info.st_mtime, whole=start == 0)
