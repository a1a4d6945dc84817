"""Text of one log file in, records out: streams told apart, tracebacks put together.

A file may hold what many ranks have printed, line by line mixed. Every stream (who printed it, by
`prefix`) is read on its own, so a traceback comes out whole however its lines were mixed with
those of others. What has no prefix cannot be told apart.
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
"""Records of one file; whatever repeats counts once."""
MAX_STREAMS = 20_000
MAX_LINE = 65_536
RECENT = 64
"""Lines before one without a time in which a time is looked for."""
SAMPLE = 1 << 18
"""Characters at the beginning of what is read that tell which prefixes a file has."""

_NCCL = re.compile(
    r"(?:^|\s)(?P<host>[\w.-]{1,100}):(?P<pid>\d{1,9}):\d{1,9} (?:\[\w+\] )?"
    r".{0,200}?NCCL (?:INFO|WARN)"
)


class Line(NamedTuple):
    """One line, and who printed it."""

    origin: Origin
    text: str
    time: str = ""
    """What a tool has put before it."""
    head: str = ""
    """Its prefixes, as printed."""

    @property
    def whole(self) -> str:
        """The line as printed."""
        return f"{self.head}{self.text}"


class _Stream:
    """What one origin prints, as far as it is not over."""

    __slots__ = (
        "aborts", "before", "began", "block", "count", "last", "life", "order", "origin", "seen",
        "timed", "watch",
    )  # fmt: skip

    def __init__(self, origin: Origin, life: Life) -> None:
        self.origin = origin
        self.life = life
        """Shared with the other streams of its process."""
        self.watch: Watch | None = None
        """What comes after the block has begun."""
        self.before = ""
        self.block: Block | None = None
        self.began: tuple[float | None, bool] = (None, False)
        """When the block began."""
        self.count = 0
        self.last = ""
        self.order = 0
        """Which line of the file the last one is."""
        self.timed = ""
        """The last line that tells a time, or what a tool put before it."""
        self.aborts = Aborts()
        self.seen: dict[tuple[str, str], int] = {}
        """Index into the records, by code and what is kept apart."""

    def see(self, line: str, row: int, time: str) -> None:
        """Note a line, and ``time``, what a tool put before it."""
        self.before, self.last, self.order = self.last, line, row
        if time or is_timed(line):
            self.timed = time or line[:SEARCHED]


class _Recent:
    """A line that may tell when those after it were printed; its time is looked for once."""

    __slots__ = ("_at", "_text", "origin")

    def __init__(self, origin: Origin, text: str) -> None:
        self.origin = origin
        self._text: str | None = text
        self._at: float | None = None

    def at(self, near: float) -> float | None:
        """When it was printed, where it says so."""
        if self._text is not None:
            self._at, self._text = stamp(self._text, near), None
        return self._at


class Parser:
    """Reads one file. Give it the text in order, in pieces of any size."""

    def __init__(
        self,
        number: int = 0,
        near: float = 0.0,
        keep: Callable[[Line], None] | None = None,
    ) -> None:
        """Begin a file.

        Args:
            number: of the file, for its records.
            near: a time not long after its last line, such as its time of change.
            keep: gets every line.
        """
        self.number = number
        self.near = near
        self.records: list[Record] = []
        self.lines = 0
        self._ends = 0
        """Ends of lines so far."""
        self._row = 0
        """Which line this one is, or is a piece of."""
        self.left_out = 0
        """Records beyond `MAX_RECORDS`."""
        self._keep = keep
        self._prefixes: Prefixes | None = None
        """Told from the first text."""
        self._words: OwnWords | None = None
        """Of lines whose prefixes tell no rank, where words do; told from it, too."""
        self._streams: dict[Origin, _Stream] = {}
        self._lives: dict[object, Life] = {}
        self._watches: dict[int, Watch] = {}
        """By index of the record."""
        self._unprefixed = Unprefixed()
        self._rest = ""
        self._recent: deque[_Recent] = deque(maxlen=RECENT)

    def feed(self, text: str) -> None:
        """Take the next piece; a last line without an end waits for the next one."""
        text = self._rest + text
        cut = max(text.rfind("\n"), text.rfind("\r", 0, len(text) - 1)) + 1
        if cut == 0 and len(text) < MAX_LINE:
            self._rest = text
            return
        cut = cut or len(text)
        self._rest = text[cut:]
        self._take(text[:cut])

    def finish(self) -> None:
        """Take what is left: after the last piece, or before a gap."""
        rest, self._rest = self._rest, ""
        if rest:
            self._take(rest)
        self.settle()

    def settle(self) -> None:
        """Take blocks that seem whole for whole: for a file that grows, and has stopped to."""
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
        """What was made of the file.

        Args:
            path: of the file.
            place: who has printed it, as its name tells.
            size: in bytes.
            changed: when it was last written to.
            left: the byte ranges that were neither read nor searched.
            whole: whether every line was given to this.
        """
        streams = [self._stream_of(stream) for stream in self._streams.values()]
        said = self._words.ranks if self._words is not None else {}
        for rank, (count, line, order) in said.items():
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
        """Whether a line goes on with a block, which else is closed."""
        if block.take(line):
            return True
        self._close(stream)
        return False

    def _stream(self, origin: Origin) -> _Stream:
        if len(self._streams) >= MAX_STREAMS:
            # Whoever makes up origins does not get more memory for it.
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
        found = recognise(line)
        if found is not None:
            row, fields = found
            at = self._note(stream, self._of_line(stream, row, fields, line), row.kept)
            if at is not None:
                stream.aborts.take(self.records[at], at, line)

    def _block(self, stream: _Stream, line: str) -> Block | None:
        own = stream.origin.own
        if drawn.opens(line):
            one = Traceback(self._row, line, own, stream.before)
            return one if own else Tangle(one)
        if line.startswith(FRAME) and ", in " in line:
            one = Traceback(self._row, line, own, cut=True)
            return one if own else Tangle(one)
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
        """Add a record; what this stream has said before only counts, and its last is kept.

        Returns its index, None where there are too many.
        """
        by = record.fields.get(apart, "") if apart else "".join(record.shape)
        # One stream may tell of several ranks: a launcher's, or NCCL's lines without a prefix.
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
        """When a line was printed: its own time, or that of a line before it."""
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
    """The needles that a text holds at all: few, so lines are only searched for those."""
    return [needle for needle in (drawn.TITLE, *NEEDLES) if needle in text]
