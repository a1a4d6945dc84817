"""Messages of probes as msgspec types with limits: all data from nodes are decoded here.

See docs/protocol.md. Numbers must be finite, texts and lists have a maximum length; a value that
does not fit is dropped and reported, the rest of its piece is kept.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct, field

from hangtop_core.model.descriptors import Descriptor, FileServer
from hangtop_core.model.recorder.clock import without_untimely
from hangtop_core.model.recorder.columns import Parts, TraceRow, Unpacker
from hangtop_core.model.recorder.recorder import CLOCK_SET
from hangtop_core.model.snapshot import (
    DescriptorTable,
    Fact,
    Failure,
    Frame,
    Local,
    Recorder,
    RecorderWay,
)
from hangtop_core.text import fixes
from hangtop_core.text.clean import Code, Count, Text, clean

T = TypeVar("T")

MISFITS = (msgspec.ValidationError, RecursionError, OverflowError, UnicodeEncodeError)
"""Exceptions of msgspec for a value that does not fit; the last one for lone surrogates."""
MAX_PROCESSES = 8192
"""Maximum processes of one node that are followed, and of exited ones; a big node has hundreds."""

Time = Annotated[float, Meta(ge=0, le=1e11)]
Pid = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Key = Annotated[str, Meta(min_length=1, max_length=128)]


class BadPieceError(ValueError):
    """A piece from a node does not hold what it should; the text says where."""


class Hello(Struct, frozen=True):
    """The first message of a probe."""

    protocol: int
    python: Text = ""
    arch: Text = ""
    system: Text = ""
    hostname: Text = ""
    user: Text = ""
    uid: int | None = None
    pid: int = 0
    boot_id: Text | None = None
    pid_ns: Count | None = None
    clock: Time | None = None
    cpus: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    capabilities: Annotated[dict[Text, Fact], Meta(max_length=64)] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """Return its contents as fields of `model.Node`."""
        return {
            "hostname": clean(self.hostname, 100) or None,
            "system": clean(self.system, 100),
            "arch": clean(self.arch, 40),
            "python": clean(self.python, 40),
            "user": clean(self.user, 60),
            "uid": self.uid,
            "boot_id": self.boot_id,
            "pid_ns": self.pid_ns,
            "cpus": self.cpus,
            "capabilities": self.capabilities,
        }


class WatchPiece(Struct, frozen=True):
    """One tick of a node; the inner objects are decoded one by one."""

    at: Time
    probe_cpu: Time | None = None
    pause: Annotated[float, Meta(ge=0, le=3600)] = 0.0
    """Seconds from this piece to the next."""
    strings: dict[str, Any] = field(default_factory=dict)
    node: dict[str, Any] = field(default_factory=dict)
    set: dict[str, Any] = field(default_factory=dict)
    gone: dict[str, Any] = field(default_factory=dict)
    nvml: dict[str, Any] | None = None
    gpus: dict[str, Any] = field(default_factory=dict)
    nics: dict[str, Any] = field(default_factory=dict)
    whole: bool | None = None
    clock_set: Annotated[float, Meta(ge=-1e10, le=1e10)] = 0.0
    """Seconds by which the node's clock was set since the last piece."""


class Gone(Struct, frozen=True):
    """How a process left the table."""

    exit_code: int | None = None


class FrameRow(Struct, frozen=True, array_like=True):
    """One frame on the wire."""

    name: Text
    file: Text
    short: Text
    line: Annotated[int, Meta(ge=-1, le=2**31 - 1)]
    native: bool = False
    source: Code | None = None
    within: Annotated[tuple[tuple[int, Code], ...], Meta(max_length=64)] | None = None
    beside: Annotated[tuple[tuple[int, Code], ...], Meta(max_length=64)] | None = None


class StackThread(Struct, frozen=True):
    """One thread's stack on the wire."""

    stack: Key
    tid: int | None = None
    name: Text | None = None
    active: bool = False
    gil: bool = False
    locals: Annotated[tuple[tuple[Local, ...], ...], Meta(max_length=5000)] = ()


class Sampled(Struct, frozen=True):
    """The end of the answer to a request for stacks."""

    pids: Annotated[int, Meta(ge=0)] = 0
    cpu_s: Time | None = None
    """CPU seconds of the tools that were run for it."""


class StackPiece(Struct, frozen=True):
    """The sample of one process by py-spy."""

    pid: Pid
    at: Time
    start: int | None = None
    took: Time = 0.0
    mode: str = "nonblocking"
    stacks: Annotated[dict[Key, tuple[FrameRow, ...]], Meta(max_length=4096)] = field(
        default_factory=dict
    )
    threads: Annotated[tuple[StackThread, ...], Meta(max_length=4096)] = ()
    resumed: bool | None = None
    """Whether SIGCONT helped, where py-spy left the process stopped."""
    failure: Failure | None = None


class DescriptorPiece(Struct, frozen=True):
    """The open descriptors of one process."""

    pid: Pid
    at: Time
    start: int | None = None
    descriptors: Annotated[tuple[Descriptor, ...], Meta(max_length=100_000)] = ()
    waiting_locks: Annotated[tuple[Descriptor, ...], Meta(max_length=1000)] = ()
    opening: Descriptor | None = None
    lock_files: Annotated[tuple[Descriptor, ...], Meta(max_length=64)] = ()
    store_port: Descriptor | None = None
    servers: Annotated[tuple[FileServer, ...], Meta(max_length=100)] = ()
    failure: Failure | None = None


class RecorderPiece(Struct, frozen=True):
    """One rank's flight recorder."""

    pid: Pid
    at: Time
    start: int | None = None
    asked_at: Time | None = None
    took: Time = 0.0
    source: Text | None = None
    path: Text | None = None
    trace: TraceRow | None = None
    parts: Parts = field(default_factory=Parts)
    ways: Annotated[tuple[RecorderWay, ...], Meta(max_length=64)] = ()
    triggered: bool = False
    failure: Failure | None = None


class TracePiece(Struct, frozen=True):
    """Lines of an strace."""

    lines: tuple[Text, ...] = ()
    lost: Count = 0


class TraceEnd(Struct, frozen=True):
    """How an strace ended."""

    lines: Count = 0
    dropped: Count = 0
    idle_polls: Count = 0
    seconds: Time = 0.0
    running_again: bool | None = None


class Problem(Struct, frozen=True):
    """Why a request failed as a whole."""

    text: Text
    kind: Text = "error"
    fix: Text | None = None


def decode(raw: object, kind: type[T]) -> T:
    """Convert ``raw`` into ``kind``.

    Raises:
        BadPieceError: ``raw`` does not fit; the text names the field.
    """
    try:
        value = msgspec.convert(raw, kind)
    except MISFITS as error:
        raise BadPieceError(clean(str(error), 200)) from error
    at = getattr(value, "at", 0.0)
    if not math.isfinite(at):
        raise BadPieceError("`$.at` is not a time")
    return fixes.worded(value)


def frames(rows: tuple[FrameRow, ...]) -> tuple[Frame, ...]:
    """Convert rows into the model's frames."""
    return tuple(
        Frame(r.name, r.file, r.short, r.line, r.native, r.source, r.within, r.beside) for r in rows
    )


def descriptor_table(piece: DescriptorPiece, skew: float) -> DescriptorTable:
    """Convert a piece into the model's table, on the head's clock."""
    shared = (set(DescriptorTable.__struct_fields__) & set(piece.__struct_fields__)) - {"at"}
    return DescriptorTable(piece.at - skew, **{name: getattr(piece, name) for name in shared})


def _clock_was_set(piece: RecorderPiece, count: int) -> tuple[RecorderWay, ...]:
    """Return the way that reports entries with times of another clock."""
    if not count or piece.source is None:
        return ()
    return (RecorderWay(piece.source, CLOCK_SET, {"count": str(count)}),)


def recorder(
    piece: RecorderPiece, skew: float, rank: int, unpacker: Unpacker, began: float | None = None
) -> Recorder:
    """Convert a piece into the model's recorder, on the head's clock.

    Args:
        piece: the piece as the node sent it.
        skew: seconds by which the node's clock is ahead.
        rank: rank of the recorder.
        unpacker: the parts that the piece refers to.
        began: when the rank's process began, on the head's clock.

    Raises:
        BadPieceError: its parts do not fit together.
    """
    trace, untimely = None, 0
    try:
        unpacker.learn(piece.parts)
        if piece.trace is not None:
            source = clean(piece.path or piece.source or "", 400)
            trace = unpacker.trace(piece.trace, rank, source, skew)
            trace, untimely = without_untimely(trace, began, piece.at - skew)
    except ValueError as error:
        raise BadPieceError(clean(f"recorder of {piece.pid}: {error}", 200)) from error
    return Recorder(
        at=piece.at - skew,
        source=piece.source,
        path=piece.path,
        trace=trace,
        ways=(*piece.ways, *_clock_was_set(piece, untimely)),
        asked_at=None if piece.asked_at is None else piece.asked_at - skew,
        took_s=piece.took,
        triggered=piece.triggered,
        failure=piece.failure,
    )
