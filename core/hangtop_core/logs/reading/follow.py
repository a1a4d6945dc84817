"""Log files as they grow: what comes at their ends, also where they are cut, or replaced."""

from __future__ import annotations

import codecs
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from hangtop_core.logs.parsing.parse import Line, Parser
from hangtop_core.logs.parsing.whose import Whose
from hangtop_core.logs.reading.copies import Copies, are_by_local, is_own
from hangtop_core.logs.reading.files import MAX_FILES, Found, find
from hangtop_core.logs.reading.lines import Choice, Shown, shown_as

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from io import FileIO

    from hangtop_core.model.file_log import FileLog, Record

BEGIN = 1 << 14
"""Bytes before the end of a file with which following it begins."""
PIECE = 1 << 20
PIECES = 16
"""Of a file that are read at once; what is left comes with the next look, within a second."""
MARK = 256
"""Bytes before the end of what was read that are compared: a file that was cut, and has grown
beyond its old size since, has others there, unless its lines are all alike."""


class _Tail:
    """One file that grows, is cut, or makes place for another of its name."""

    def __init__(self, found: Found, number: int, keep: Callable[[int, Line], None]) -> None:
        self.found = found
        self.changed = time.monotonic()
        self.notes: list[str] = []
        self._file = open(found.path, "rb", buffering=0)  # noqa: SIM115  # it stays open
        self.parser = Parser(number, time.time(), lambda line: keep(number, line))
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._mark = b""
        """What was read last, `MARK` bytes at most."""
        start = max(os.fstat(self._file.fileno()).st_size - BEGIN, 0)
        if start:
            begin, end, rest = os.pread(self._file.fileno(), BEGIN, start).partition(b"\n")
            self._mark = begin + end if rest else b""
            self._file.seek(start + len(self._mark))
            self._mark = self._mark[-MARK:]

    def poll(self) -> bool:
        """Take what is new; say whether there was anything."""
        if self._was_cut():
            self._file.seek(0)
            self._begin(self._file, "was cut")
        news = self._read()
        try:
            now = os.stat(self.found.path)
        except OSError:
            return news
        old = os.fstat(self._file.fileno())
        # As long as the new one is empty, who writes may still have the old one open.
        if (now.st_dev, now.st_ino) != (old.st_dev, old.st_ino) and now.st_size:
            try:
                new = open(self.found.path, "rb", buffering=0)  # noqa: SIM115
            except OSError:  # it is gone again, or may not be read: the old one goes on
                return news
            news = self._read() or news
            self._begin(new, "was replaced by a new file")
            news = self._read() or news
        return news

    def _was_cut(self) -> bool:
        """Whether the file is shorter than what was read of it, or was so and has grown again."""
        here, descriptor = self._file.tell(), self._file.fileno()
        size = os.fstat(descriptor).st_size
        if size <= here:
            return size < here
        return os.pread(descriptor, len(self._mark), here - len(self._mark)) != self._mark

    def _begin(self, file: FileIO, why: str) -> None:
        self.parser.finish()
        self._decoder.reset()
        if file is not self._file:
            self._file.close()
            self._file = file
        self._mark = b""
        self.notes.append(f"{self.found.path} {why}")

    def _read(self) -> bool:
        news = False
        with suppress(OSError):  # nothing but a hole, or a file system that does not tell
            # Who writes on where it was in a file that was cut leaves a hole before that.
            os.lseek(self._file.fileno(), self._file.tell(), os.SEEK_DATA)
        for _ in range(PIECES):
            data = self._file.read(PIECE)
            if not data:
                break
            news = True
            self._mark = (self._mark + data)[-MARK:]
            self.parser.near = time.time()  # by which times without a date are told
            self.parser.feed(self._decoder.decode(data))
        if news:
            self.changed = time.monotonic()
        elif time.monotonic() - self.changed > 1.0:
            self.parser.settle()
        return news

    def log(self) -> FileLog:
        """What was read so far."""
        info = os.fstat(self._file.fileno())
        return self.parser.log(self.found.path, self.found.place, info.st_size, info.st_mtime)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Follower:
    """Follows files as they grow; new ones in a directory, too."""

    RESCAN_S = 2.0

    def __init__(self, arguments: Sequence[str], choice: Choice) -> None:
        self._arguments = [one for one in arguments if one != "-"]
        self._choice = choice
        self._tails: dict[str, _Tail] = {}
        self._new: list[tuple[int, Line]] = []
        self._told: dict[int, int] = {}
        self._copies = Copies()
        self._scanned = 0.0

    def poll(self) -> tuple[list[Shown], list[Record], list[str]]:
        """New lines that are wanted, new records of all, and notes on files."""
        if time.monotonic() - self._scanned > self.RESCAN_S:
            self._scan()
        for tail in self._tails.values():
            tail.poll()
        lines, self._new = self._new, []
        told = sum(len(tail.parser.records) for tail in self._tails.values())
        if not lines and told == sum(self._told.values()):
            return [], [], self._notes()
        logs = self.logs()
        whose = Whose(logs)
        shown = [one for one in self._first(logs, whose, lines) if self._choice.takes(one)]
        records = []
        for number, tail in enumerate(self._tails.values()):
            before = self._told.get(number, 0)
            records += [whose.settle(record) for record in tail.parser.records[before:]]
            self._told[number] = len(tail.parser.records)
        return shown, records, self._notes()

    def _first(
        self, logs: Sequence[FileLog], whose: Whose, lines: Iterable[tuple[int, Line]]
    ) -> Iterator[Shown]:
        """Lines that were not there yet from the file of their rank, or from its launcher."""
        own, by_local = [is_own(log.place) for log in logs], are_by_local(logs)
        for number, line in lines:
            one = shown_as(whose, number, line)
            whom = one.number(by_local) if len(set(own)) > 1 else None
            if not self._copies.is_copy(whom, one.text, own[number]):
                yield one

    def _notes(self) -> list[str]:
        """What has become of files since the last time."""
        notes = []
        for tail in self._tails.values():
            notes += tail.notes
            tail.notes = []
        return notes

    def _scan(self) -> None:
        self._scanned = time.monotonic()
        for found in find(self._arguments)[0][:MAX_FILES]:
            if found.path not in self._tails:
                try:
                    tail = _Tail(found, len(self._tails), self._take)
                except OSError:
                    continue
                self._tails[found.path] = tail

    def _take(self, number: int, line: Line) -> None:
        self._new.append((number, line))

    def logs(self) -> list[FileLog]:
        """What was read so far of every file."""
        return [tail.log() for tail in self._tails.values()]

    def close(self) -> None:
        """Close all files."""
        for tail in self._tails.values():
            tail.close()
