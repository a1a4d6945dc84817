"""Parse the text of one log file into records: separate its streams, join its tracebacks.

A file may hold lines of many ranks, mixed line by line. Every stream (lines of one origin, by
`prefix`) is parsed separately, so a traceback is whole however its lines were mixed with those of
others. Lines without a prefix cannot be separated.
"""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from hangtop_core.logs.meaning.aborts import Aborts
from hangtop_core.logs.meaning.asynchronous import AsyncError, Unprefixed, begins
from hangtop_core.logs.meaning.known import FRAME, LAUNCHERS, NEEDLES, SUMMARY, recognise
from hangtop_core.logs.meaning.life import SURVIVABLE, Life, Watch, process_of
from hangtop_core.logs.parsing import drawn
from hangtop_core.logs.parsing.blocks import Block, Crash, Summary, Traceback
from hangtop_core.logs.parsing.own_words import OwnWords, in_own_words, is_told, words_of
from hangtop_core.logs.parsing.prefix import Prefixes, without_colours
from hangtop_core.logs.parsing.record import ending, fill, kept
from hangtop_core.logs.parsing.stamp import SEARCHED, is_timed, stamp
from hangtop_core.logs.parsing.tangle import Tangle
from hangtop_core.model.file_log import Again, FileLog, Origin, Place, Record, Stream
from hangtop_core.text.clean import clean

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangtop_core.logs.meaning.known import Known

MAX_RECORDS = 4000
"""Maximum number of records of one file; repetitions count once."""
MAX_STREAMS = 20_000
MAX_LINE = 65_536
RECENT = 64
"""Number of preceding lines that are searched for a time."""
SAMPLE = 1 << 18
"""Characters at the beginning of the text that determine a file's prefixes."""

_NCCL = re.compile(
    r"(?:^|\s)(?P<host>[\w.-]{1,100}):(?P<pid>\d{1,9}):\d{1,9} (?:\[\w+\] )?"
    r".{0,200}?NCCL (?:INFO|WARN)"
)


class Line(NamedTuple):
    """A line and its origin."""

    origin: Origin
    text: str
    time: str = ""
    """The time that a tool has put before it."""
    head: str = ""
    """Its prefixes, as printed."""

    @property
    def whole(self) -> str:
        """Return the line as printed."""
        return f"{self.head}{self.text}"


class _Stream:
    """The lines of one origin that are still open."""

    __slots__ = (
        "aborts", "before", "began", "block", "count", "last", "life", "order", "origin", "seen",
        "timed", "watch",
    )  # fmt: skip

    def __init__(self, origin: Origin, life: Life) -> None:
        self.origin = origin
        self.life = life
        """Shared with the other streams of its process."""
        self.watch: Watch | None = None
        """Lines that follow the beginning of the block."""
        self.before = ""
        self.block: Block | None = None
        self.began: tuple[float | None, bool] = (None, False)
        """When the block began."""
        self.count = 0
        self.last = ""
        self.order = 0
        """Number of the last line in the file."""
        self.timed = ""
        """The last line with a time, or the time that a tool put before it."""
        self.aborts = Aborts()
        self.seen: dict[tuple[str, str], int] = {}
        """Index into the records, by code and distinguishing fields."""

    def see(self, line: str, row: int, time: str) -> None:
        """Note a line, and ``time``, which a tool put before it."""
        self.before, self.last, self.order = self.last, line, row
        if time or is_timed(line):
            self.timed = time or line[:SEARCHED]


class _Recent:
    """A line that may date those after it; its time is parsed once."""

    __slots__ = ("_at", "_text", "origin")

    def __init__(self, origin: Origin, text: str) -> None:
        self.origin = origin
        self._text: str | None = text
        self._at: float | None = None

    def at(self, near: float) -> float | None:
        """Return when the line was printed, if it says so."""
        if self._text is not None:
            self._at, self._text = stamp(self._text, near), None
        return self._at


class Parser:
    """Parse one file. Feed it the text in order, in pieces of any size."""

    def __init__(
        self,
        number: int = 0,
        near: float = 0.0,
        keep: Callable[[Line], None] | None = None,
    ) -> None:
        """Begin a file.

        Args:
            number: of the file, for its records.
            near: a time shortly after its last line, such as its time of change.
            keep: receives every line.
        """
        self.number = number
        self.near = near
        self.records: list[Record] = []
        self.lines = 0
        self._ends = 0
        """Number of line ends so far."""
        self._row = 0
        """Number of the current line."""
        self.left_out = 0
        """Number of records beyond `MAX_RECORDS`."""
        self._keep = keep
        self._prefixes: Prefixes | None = None
        """Determined from the first text."""
        self._words: OwnWords | None = None
        """Words that name the rank in lines without such a prefix; determined from the first text,
        too."""
        self._streams: dict[Origin, _Stream] = {}
        self._lives: dict[object, Life] = {}
        self._watches: dict[int, Watch] = {}
        """By index of the record."""
        self._unprefixed = Unprefixed()
        self._remainder = ""
        self._recent: deque[_Recent] = deque(maxlen=RECENT)

    def feed(self, text: str) -> None:
        """Take the next piece; a last line without an end waits for the next piece."""
        text = self._remainder + text
        cut = max(text.rfind("\n"), text.rfind("\r", 0, len(text) - 1)) + 1
        if cut == 0 and len(text) < MAX_LINE:
            self._remainder = text
            return
        cut = cut or len(text)
        self._remainder = text[cut:]
        self._take(text[:cut])

    def finish(self) -> None:
        """Parse the remaining text: after the last piece, or before a gap."""
        remainder, self._remainder = self._remainder, ""
        if remainder:
            self._take(remainder)
        self.settle()

    def settle(self) -> None:
        """Close the open blocks of a growing file once it has paused."""
        for stream in self._streams.values():
            self._close(stream)

    def log(
        self,
        path: str,
        place: Place,
        size: int = 0,
        changed: float | None = None,
        left: tuple[tuple[int, int], ...] = (),
        whole: bool = True,
    ) -> FileLog:
        """Return the parsed file.

        Args:
            path: of the file.
            place: the rank and node by its name.
            size: in bytes.
            changed: when it was last written to.
            left: the byte ranges that were neither read nor searched.
            whole: whether every line was fed.
        """
        streams = [self._stream_of(stream) for stream in self._streams.values()]
        named = self._words.ranks if self._words is not None else {}
        for rank, (count, line, order) in named.items():
            at = stamp(line, self.near)
            streams.append(Stream(Origin(said=rank), count, clean(line, 300), at, at, order))
        explained = {stream.aborts.explained for stream in self._streams.values()}
        records = [
            msgspec.structs.replace(
                record,
                after=self._watches[index].after() if index in self._watches else record.after,
                part="cascade" if index in explained else record.part,
            )
            if index in self._watches or index in explained
            else record
            for index, record in enumerate(self.records)
        ]
        return FileLog(
            path,
            place,
            size,
            changed,
            tuple(sorted(records, key=lambda record: record.order)),
            tuple(streams),
            lines=self.lines,
            left=left,
            left_out=self.left_out,
            whole=whole,
        )

    def _stream_of(self, stream: _Stream) -> Stream:
        at = stamp(stream.last, self.near)
        since = at if at is not None else stamp(stream.timed, self.near)
        return Stream(stream.origin, stream.count, clean(stream.last, 300), at, since, stream.order)

    def _take(self, text: str) -> None:
        text = without_colours(text)
        prefixes = self._prefixes_of(text)
        take, hot, words = prefixes.take, _hot(text), self._words
        for number, raw in prefixes.split(text):
            if not raw:
                continue
            self.lines += 1
            self._row = self._ends + 1 + number
            origin, line = take(raw[:MAX_LINE])
            origin = self._unprefixed.origin(origin, line)
            stream = self._streams.get(origin)
            if stream is None:
                stream = self._stream(origin)
            if line:
                stream.see(line, self._row, prefixes.time)
            rank = None if words is None or is_told(origin) else words.take(line, self._row)
            stream.count += rank is None
            if self._keep is not None:
                self._keep(Line(origin.with_said(rank), line, prefixes.time, prefixes.head))
            if stream.block is not None and self._is_of_block(stream.block, stream, line):
                continue
            if hot and any(needle in line for needle in hot):
                self._look(stream, line)
            elif stream.life.wanted:
                stream.life.take(line, self.near, prefixes.time)
            self._recent.append(_Recent(origin, prefixes.time or line))
        self._ends += text.count("\n")

    def _prefixes_of(self, text: str) -> Prefixes:
        if self._prefixes is None:
            self._prefixes = Prefixes(text[:SAMPLE])
            self._words = words_of(text[:SAMPLE], self._prefixes)
        return self._prefixes

    def _is_of_block(self, block: Block, stream: _Stream, line: str) -> bool:
        """Whether a line continues a block; otherwise close the block."""
        if block.take(line):
            return True
        self._close(stream)
        return False

    def _stream(self, origin: Origin) -> _Stream:
        if len(self._streams) >= MAX_STREAMS:
            # Forged origins get no more memory.
            return next(iter(self._streams.values()))
        life = self._lives.setdefault(process_of(origin), Life())
        stream = self._streams[origin] = _Stream(origin, life)
        return stream

    def _look(self, stream: _Stream, line: str) -> None:
        stream.block = self._block(stream, line)
        if stream.block is not None:
            stream.began = self._time(stream.origin, line)
            stream.watch = stream.life.watch()
            return
        match = recognise(line)
        if match is not None:
            row, fields = match
            at = self._note(stream, self._of_line(stream, row, fields, line), row.kept)
            if at is not None:
                stream.aborts.take(self.records[at], at, line)

    def _block(self, stream: _Stream, line: str) -> Block | None:
        own = stream.origin.own
        if drawn.opens(line):
            traceback = Traceback(self._row, line, own, stream.before)
            return traceback if own else Tangle(traceback)
        if line.startswith(FRAME) and ", in " in line:
            traceback = Traceback(self._row, line, own, cut=True)
            return traceback if own else Tangle(traceback)
        if begins(line):
            error = AsyncError(self._row, line)
            self._unprefixed.began(stream.origin, error)
            return error
        if line.strip() in SUMMARY:
            return Summary(self._row, line, self.near)
        return Crash(self._row, line) if line.startswith("Fatal Python error:") else None

    def _of_line(self, stream: _Stream, row: Known, fields: dict[str, str], line: str) -> Record:
        at, exact = self._time(stream.origin, line)
        nccl = _NCCL.search(line[:500])
        if nccl is not None:
            fields.setdefault("host", nccl["host"])
            fields.setdefault("pid", nccl["pid"])
        if row.code in LAUNCHERS and "exit" in fields:
            fields.setdefault("signal", ending(int(fields["exit"])))
        return Record(
            row.code,
            row.part,
            clean(line, 400),
            self.number,
            self._row,
            stream.origin,
            fill(row.means, fields),
            row.cause,
            fields,
            kept([line]),
            at=at,
            exact=exact,
        )

    def _close(self, stream: _Stream) -> None:
        block, stream.block = stream.block, None
        for record in block.records() if block is not None else ():
            at, exact = (record.at, True) if record.at is not None else stream.began
            record = msgspec.structs.replace(
                record, file=self.number, origin=stream.origin, at=at, exact=exact
            )
            self._note(stream, record)
        stream.watch = None

    def _note(self, stream: _Stream, record: Record, apart: str = "") -> int | None:
        """Add a record; a repetition in this stream only counts, and its last time is kept.

        Returns its index, None beyond `MAX_RECORDS`.
        """
        by = record.fields.get(apart, "") if apart else "".join(record.shape)
        # One stream may name several ranks: a launcher's, or NCCL's lines without a prefix.
        about = [record.fields.get(name, "") for name in ("rank", "local", "named")]
        host = record.fields.get("host")
        about += [host, record.fields.get("pid", "")] if host is not None else []
        own = in_own_words(record.text)
        about += [f"rank {own}"] if own is not None else []
        key = (record.code, " ".join([by, *about]))
        at = stream.seen.get(key)
        if at is None:
            if len(self.records) >= MAX_RECORDS:
                self.left_out += 1
                return None
            at = stream.seen[key] = len(self.records)
            self.records.append(record)
        else:
            first = self.records[at]
            self.records[at] = msgspec.structs.replace(
                first,
                count=first.count + record.count,
                fields=record.fields if apart else first.fields,
                means=record.means if apart else first.means,
                again=Again(record.order, record.at, record.exact),
            )
        if record.code in SURVIVABLE:
            self._watches[at] = stream.watch or stream.life.watch()
        return at

    def _time(self, origin: Origin, line: str) -> tuple[float | None, bool]:
        """Return when a line was printed, and whether the line itself has that time."""
        at = stamp(line, self.near)
        if at is None and self._prefixes is not None:
            at = stamp(self._prefixes.time, self.near)
        if at is not None:
            return at, True
        for same in (True, False):
            for recent in reversed(self._recent):
                if (recent.origin == origin) is same:
                    at = recent.at(self.near)
                    if at is not None:
                        return at, False
        return None, False


def _hot(text: str) -> list[str]:
    """Return the few needles that a text contains: lines are searched only for these."""
    return [needle for needle in (drawn.TITLE, *NEEDLES) if needle in text]
