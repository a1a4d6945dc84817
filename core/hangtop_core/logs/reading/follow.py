"""Growing log files: new lines at their ends, also after truncation or replacement."""

from __future__ import annotations

import codecs
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from hangtop_core.logs.parsing.owners import Owners
from hangtop_core.logs.parsing.parse import Line, Parser
from hangtop_core.logs.reading.copies import Copies, are_by_local, is_own
from hangtop_core.logs.reading.files import MAX_FILES, Found, find
from hangtop_core.logs.reading.lines import Choice, Shown, shown_as

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from io import FileIO

    from hangtop_core.model.file_log import FileLog, Record

BEGIN = 1 << 14
"""Bytes before the end of a file at which following it begins."""
PIECE = 1 << 20
PIECES = 16
"""Maximum number of pieces of a file that are read at once; the rest follows within a second."""
MARK = 256
"""Bytes before the read position that are compared: a file that was truncated and has grown beyond
its old size holds others there, unless its lines are all alike."""


class _Tail:
    """A file that grows, is truncated, or is replaced by another of its name."""

    def __init__(self, source: Found, number: int, keep: Callable[[int, Line], None]) -> None:
        self.source = source
        self.changed = time.monotonic()
        self.notes: list[str] = []
        self._file = open(source.path, "rb", buffering=0)  # noqa: SIM115  # it stays open
        self.parser = Parser(number, time.time(), lambda line: keep(number, line))
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._mark = b""
        """The last bytes read, `MARK` at most."""
        start = max(os.fstat(self._file.fileno()).st_size - BEGIN, 0)
        if start:
            begin, end, remainder = os.pread(self._file.fileno(), BEGIN, start).partition(b"\n")
            self._mark = begin + end if remainder else b""
            self._file.seek(start + len(self._mark))
            self._mark = self._mark[-MARK:]

    def poll(self) -> bool:
        """Read new bytes; return whether there were any."""
        if self._was_cut():
            self._file.seek(0)
            self._begin(self._file, "was cut")
        news = self._read()
        try:
            now = os.stat(self.source.path)
        except OSError:
            return news
        old = os.fstat(self._file.fileno())
        # While the new file is empty, the writer may still have the old one open.
        if (now.st_dev, now.st_ino) != (old.st_dev, old.st_ino) and now.st_size:
            try:
                new = open(self.source.path, "rb", buffering=0)  # noqa: SIM115
            except OSError:  # it is gone again, or unreadable: keep the old one
                return news
            news = self._read() or news
            self._begin(new, "was replaced by a new file")
            news = self._read() or news
        return news

    def _was_cut(self) -> bool:
        """Whether the file was truncated: it is too short, or its last read bytes changed."""
        position, descriptor = self._file.tell(), self._file.fileno()
        size = os.fstat(descriptor).st_size
        if size <= position:
            return size < position
        return os.pread(descriptor, len(self._mark), position - len(self._mark)) != self._mark

    def _begin(self, file: FileIO, why: str) -> None:
        self.parser.finish()
        self._decoder.reset()
        if file is not self._file:
            self._file.close()
            self._file = file
        self._mark = b""
        self.notes.append(f"{self.source.path} {why}")

    def _read(self) -> bool:
        news = False
        with suppress(OSError):  # nothing but a hole, or a file system without SEEK_DATA
            # A writer that keeps its position in a truncated file leaves a hole before it.
            os.lseek(self._file.fileno(), self._file.tell(), os.SEEK_DATA)
        for _ in range(PIECES):
            data = self._file.read(PIECE)
            if not data:
                break
            news = True
            self._mark = (self._mark + data)[-MARK:]
            self.parser.near = time.time()  # the reference for times without a date
            self.parser.feed(self._decoder.decode(data))
        if news:
            self.changed = time.monotonic()
        elif time.monotonic() - self.changed > 1.0:
            self.parser.settle()
        return news

    def log(self) -> FileLog:
        """Return the file's log so far."""
        info = os.fstat(self._file.fileno())
        return self.parser.log(self.source.path, self.source.place, info.st_size, info.st_mtime)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Follower:
    """Follow files as they grow, and new files in a directory."""

    RESCAN_S = 2.0

    def __init__(self, arguments: Sequence[str], choice: Choice) -> None:
        self._arguments = [argument for argument in arguments if argument != "-"]
        self._choice = choice
        self._tails: dict[str, _Tail] = {}
        self._new: list[tuple[int, Line]] = []
        self._reported: dict[int, int] = {}
        self._copies = Copies()
        self._scanned = 0.0

    def poll(self) -> tuple[list[Shown], list[Record], list[str]]:
        """Return new wanted lines, new records of all files, and notes on files."""
        if time.monotonic() - self._scanned > self.RESCAN_S:
            self._scan()
        for tail in self._tails.values():
            tail.poll()
        lines, self._new = self._new, []
        total = sum(len(tail.parser.records) for tail in self._tails.values())
        if not lines and total == sum(self._reported.values()):
            return [], [], self._notes()
        logs = self.logs()
        owners = Owners(logs)
        shown = [line for line in self._first(logs, owners, lines) if self._choice.takes(line)]
        records = []
        for number, tail in enumerate(self._tails.values()):
            before = self._reported.get(number, 0)
            records += [owners.settle(record) for record in tail.parser.records[before:]]
            self._reported[number] = len(tail.parser.records)
        return shown, records, self._notes()

    def _first(
        self, logs: Sequence[FileLog], owners: Owners, lines: Iterable[tuple[int, Line]]
    ) -> Iterator[Shown]:
        """Yield lines that the rank's file or its launcher has not yielded before."""
        own, by_local = [is_own(log.place) for log in logs], are_by_local(logs)
        for number, line in lines:
            shown = shown_as(owners, number, line)
            rank = shown.number(by_local) if len(set(own)) > 1 else None
            if not self._copies.is_copy(rank, shown.text, own[number]):
                yield shown

    def _notes(self) -> list[str]:
        """Return changes of files since the last call."""
        notes = []
        for tail in self._tails.values():
            notes += tail.notes
            tail.notes = []
        return notes

    def _scan(self) -> None:
        self._scanned = time.monotonic()
        for source in find(self._arguments)[0][:MAX_FILES]:
            if source.path not in self._tails:
                try:
                    tail = _Tail(source, len(self._tails), self._take)
                except OSError:
                    continue
                self._tails[source.path] = tail

    def _take(self, number: int, line: Line) -> None:
        self._new.append((number, line))

    def logs(self) -> list[FileLog]:
        """Return the log of every file so far."""
        return [tail.log() for tail in self._tails.values()]

    def close(self) -> None:
        """Close all files."""
        for tail in self._tails.values():
            tail.close()
