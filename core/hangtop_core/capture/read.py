"""Read a capture as far as it goes, from any source.

Everything is limited, and decoded into the types of the model with their limits. A truncated or
damaged line ends the reading: the part before it is shown, with a notice.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from hangtop_core.attach.wire.command_log import MAX_RECORDS, CommandRecord
from hangtop_core.capture import boundary
from hangtop_core.capture.changes import Damaged, Maker
from hangtop_core.capture.form import (
    FAMILY,
    LAST_TIME,
    MAX_BYTES,
    MAX_HOLDERS,
    MAX_LINE,
    MAX_LINES,
    MAX_PICTURES,
    MAX_STACKS,
    SCHEMA,
    SUFFIX,
    VERSION,
    Header,
)
from hangtop_core.capture.memory import Memory
from hangtop_core.capture.traces import Traces
from hangtop_core.diagnosis import Diagnosis
from hangtop_core.errors import BadCaptureError
from hangtop_core.model.output import Output
from hangtop_core.model.snapshot import Frame, Job, Node, Rank, Recorder
from hangtop_core.model.updates import Update
from hangtop_core.text.clean import clean, size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAGIC = b"\x1f\x8b"
LATER = frozenset({"command", "earlier", "end"})
"""Lines after the newest snapshot."""
MAX_NODES = 100_000
MAX_RANKS = 1 << 18
MAX_OUTPUTS = 4096
MOST_TOLD = 3


class Capture(Struct, frozen=True):
    """The content of a file."""

    header: Header
    pictures: tuple[Update, ...]
    """Oldest first; the newest is always present."""
    commands: tuple[CommandRecord, ...] = ()
    texts: Mapping[str, str] = {}
    """The verdict as text, by job."""
    cut: str | None = None
    """Why the reading ended early; None if it did not."""
    partial: bool = False
    """Whether that was within the newest snapshot, whose nodes and ranks are then incomplete."""

    @property
    def newest(self) -> Update:
        """The snapshot at the time of the capture."""
        return self.pictures[-1]


def is_capture(path: str) -> bool:
    """Whether a file begins as a capture of any version does. Never raises."""
    try:
        if not Path(path).is_file():
            return False
        with Path(path).open("rb") as file:
            if file.read(2) != MAGIC:
                return False
            file.seek(0)
            with gzip.GzipFile(fileobj=file) as zipped:
                return FAMILY.encode() in zipped.read(64)
    except (OSError, EOFError, zlib.error, ValueError):
        return False


def load(path: str) -> Capture:
    """Read a capture.

    Raises:
        BadCaptureError: it is no capture, or cannot be opened at all.
    """
    name = clean(path, 200)
    try:
        if Path(path).is_dir():
            raise BadCaptureError(f"{name} is a folder", _held(Path(path)))
        if Path(path).exists() and not Path(path).is_file():
            # Opening a pipe without a writer would wait for ever.
            raise BadCaptureError(f"{name} is no regular file")
        with Path(path).open("rb") as file:
            if file.read(2) != MAGIC:
                raise BadCaptureError(f"{name} is no capture of hangtop")
            file.seek(0)
            with gzip.GzipFile(fileobj=file) as zipped:
                return _load(name, zipped)
    except OSError as error:
        raise BadCaptureError(f"cannot read {name}: {error.strerror or error}") from None


def _held(folder: Path) -> str | None:
    """Return the captures in a folder, or in one of its own, as `hangtop watch` makes them."""
    pattern = f"*{SUFFIX}"
    captures = sorted([*folder.glob(pattern), *folder.glob(f"*/{pattern}")])[-MOST_TOLD:]
    names = ", ".join(clean(str(path), 200) for path in captures)
    return f"Captures in it: {names}" if captures else None


def _load(name: str, file: gzip.GzipFile) -> Capture:
    lines = Lines(file)
    header = _header(name, next(iter(lines), None))
    reader, room = Reader(header), Memory()
    wrong: str | None = None
    try:
        for line in lines:
            room.take(line)
            reader.take(line)
            if reader.ended:
                break
    except Damaged as error:
        wrong = f"line {lines.count} is damaged: {clean(str(error), 300)}"
    except RecursionError:
        wrong = f"line {lines.count} is damaged: it is nested too deeply"
    if wrong is None and not reader.ended:
        wrong = lines.wrong or "it ends before its end"
    if reader.base is None:
        raise BadCaptureError(f"{name} holds no picture: {wrong}")
    return reader.capture(wrong)


class Lines:
    """The lines of a file, as many as can be read."""

    def __init__(self, file: gzip.GzipFile) -> None:
        self._file = file
        self._bytes = self._holders = 0
        self.count = 0
        self.wrong: str | None = None
        """Why there are no more lines."""

    def __iter__(self) -> Iterator[bytes]:
        while self.count < MAX_LINES:
            try:
                line = self._file.readline(MAX_LINE + 1)
            except EOFError:
                self.wrong = "it is cut off"
                return
            except (OSError, zlib.error, ValueError) as error:
                self.wrong = f"it is damaged: {clean(str(error), 100)}"
                return
            if not line:
                return
            self._bytes += len(line)
            self._holders += line.count(b"[") + line.count(b"{")
            self.count += 1
            if len(line) > MAX_LINE or self._bytes > MAX_BYTES:
                limits = f"{size(MAX_LINE)} in a line, {size(MAX_BYTES)} in all"
                self.wrong = f"it has more than hangtop reads: {limits}"
                return
            if self._holders > MAX_HOLDERS:
                self.wrong = f"it has more than {MAX_HOLDERS:,} lists and objects, the limit"
                return
            if not line.endswith(b"\n"):
                self.wrong = "it is cut off"
                return
            yield line
        self.wrong = f"it has more than {MAX_LINES} lines"


class _Kind(Struct):
    schema: str = ""


def _header(name: str, line: bytes | None) -> Header:
    """Return the header.

    Raises:
        BadCaptureError: it is missing, or of another version.
    """
    try:
        schema = msgspec.json.decode(line or b"", type=_Kind).schema
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        schema = ""
    if not schema.startswith(FAMILY):
        raise BadCaptureError(f"{name} is no capture of hangtop")
    if schema != SCHEMA:
        version = clean(schema.removeprefix(FAMILY), 20)
        raise BadCaptureError(
            f"{name} is of version {version}, and this hangtop reads version {VERSION}",
            "A newer hangtop opens it: `hangtop --version` says which this is.",
        )
    try:
        return msgspec.convert(boundary.harmless(msgspec.json.decode(line or b"")), Header)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise BadCaptureError(f"the header of {name} is damaged: {error}") from None


class Reader:
    """Read lines."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.base: Update | None = None
        self.ended = False
        self._partial = True
        self._traces = Traces()
        self._maker = Maker(self._traces.get)
        self._stacks: dict[str, tuple[Frame, ...]] = {}
        self._nodes: list[Node] = []
        self._ranks: list[list[Rank]] = []
        self._outputs: list[Output] = []
        self._verdicts: dict[str, Diagnosis] = {}
        self._texts: dict[str, str] = {}
        self._commands: list[CommandRecord] = []
        self._newest: Update | None = None
        self._earlier: list[Update] = []
        self._takers: dict[str, Callable[[Any], None]] = {
            "base": self._take_base,
            "verdict": self._take_verdict,
            "node": self._take_node,
            "stack": self._take_stack,
            "parts": lambda raw: self._traces.learn(raw["parts"]),
            "trace": self._traces.add,  # before rank: a trace has a rank, too
            "rank": self._take_rank,
            "output": self._take_output,
            "recorder": self._take_recorder,
            "command": self._take_command,
            "earlier": self._take_earlier,
            "end": self._take_end,
        }

    def take(self, line: bytes) -> None:
        """Take the next line; skip one of an unknown kind.

        Raises:
            Damaged: it does not fit.
        """
        try:
            raw = msgspec.json.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Damaged(str(error)) from None
        raw = raw if boundary.is_harmless(line) else boundary.harmless(raw)
        if not isinstance(raw, dict):
            raise Damaged("it is no object")
        for kind, taker in self._takers.items():
            if kind in raw:
                if kind not in ("base", "verdict") and self.base is None:
                    raise Damaged("it has no base")
                self._partial = self._partial and kind not in LATER
                taker(raw)
                return

    def _take_base(self, raw: Any) -> None:
        if self.base is not None:
            raise Damaged("there are two bases")
        base = self._maker.whole(Update, raw["base"])
        _check_time(base)
        self.base = base
        self._ranks = [list(job.ranks) for job in base.snapshot.jobs]

    def _take_verdict(self, raw: Any) -> None:
        key = _text(raw["verdict"])
        self._verdicts[key] = self._maker.whole(Diagnosis, raw.get("diagnosis"))
        self._texts[key] = _text(raw.get("text", ""), 1 << 20)

    def _take_node(self, raw: Any) -> None:
        _bound(self._nodes, MAX_NODES)
        self._nodes.append(self._maker.whole(Node, raw["node"]))

    def _take_stack(self, raw: Any) -> None:
        _bound(self._stacks, MAX_STACKS)
        frames = raw.get("frames")
        if not isinstance(frames, list) or len(frames) > 4096:
            raise Damaged("a stack is no list of frames")
        key = _text(raw["stack"])
        self._stacks[key] = tuple(self._maker.whole(Frame, frame) for frame in frames)

    def _take_rank(self, raw: Any) -> None:
        ranks = self._job_of(raw)
        _bound(ranks, MAX_RANKS)
        ranks.append(self._maker.whole(Rank, raw["rank"]))

    def _take_recorder(self, raw: Any) -> None:
        ranks, place = self._job_of(raw), raw.get("at")
        if not isinstance(place, int) or not 0 <= place < len(ranks):
            raise Damaged("a recorder is of no rank")
        recorder = self._maker.whole(Recorder, raw["recorder"])
        ranks[place] = replace(ranks[place], recorder=recorder)

    def _job_of(self, raw: Any) -> list[Rank]:
        place = raw.get("of")
        if not isinstance(place, int) or not 0 <= place < len(self._ranks):
            raise Damaged("a rank is of no job")
        return self._ranks[place]

    def _take_output(self, raw: Any) -> None:
        _bound(self._outputs, MAX_OUTPUTS)
        self._outputs.append(self._maker.whole(Output, raw["output"]))

    def _take_command(self, raw: Any) -> None:
        _bound(self._commands, MAX_RECORDS)
        self._commands.append(self._maker.whole(CommandRecord, raw["command"]))

    def _take_earlier(self, raw: Any) -> None:
        _bound(self._earlier, MAX_PICTURES)
        newer = self._earlier[-1] if self._earlier else self._whole()
        update: Update = self._maker.changed(newer, raw["earlier"])
        _check_time(update)
        if update.snapshot.at >= newer.snapshot.at:
            raise Damaged("an earlier picture is not earlier")
        self._earlier.append(update)

    def _take_end(self, raw: Any) -> None:
        self.ended = True

    def _whole(self) -> Update:
        """Return the newest snapshot, as far as it was read."""
        if self._newest is None:
            assert self.base is not None  # noqa: S101 - `take` has looked
            snapshot = self.base.snapshot
            jobs: tuple[Job, ...] = tuple(
                replace(job, ranks=tuple(ranks))
                for job, ranks in zip(snapshot.jobs, self._ranks, strict=True)
            )
            snapshot = replace(
                snapshot, jobs=jobs, nodes=tuple(self._nodes), outputs=tuple(self._outputs)
            )
            self._newest = Update(snapshot, self._verdicts, self.base.cost_s)
        return self._newest

    def capture(self, cut: str | None) -> Capture:
        """Return the whole capture; all snapshots share the same stacks."""
        pictures = [self._whole(), *self._earlier]
        stacks = self._stacks
        shown = (
            replace(picture, snapshot=replace(picture.snapshot, stacks=stacks))
            for picture in pictures
        )
        return Capture(
            self.header,
            tuple(reversed(list(shown))),
            tuple(self._commands),
            self._texts,
            cut,
            self._partial,
        )


def _check_time(update: Update) -> None:
    snapshot = update.snapshot
    if not (0 <= snapshot.at <= LAST_TIME and 0 <= snapshot.observed_since <= LAST_TIME):
        raise Damaged("it was taken at no time there is")


def _bound(items: Any, limit: int) -> None:
    if len(items) >= limit:
        raise Damaged(f"it has more than {limit:,} items of one kind, the limit")


def _text(raw: Any, limit: int = 4096) -> str:
    if not isinstance(raw, str) or len(raw) > limit:
        raise Damaged("what should be a text is none")
    return raw
