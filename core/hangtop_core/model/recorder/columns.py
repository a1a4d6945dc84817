"""Traces from columns of flight recorders that `hangtop_probe.recorder.columns` makes.

Ranks of one job call the same operations at the same places, so equal calls, stacks and groups are
kept once, however many ranks have them.
"""

from __future__ import annotations

import re
import zlib
from array import array
from base64 import b64decode
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from msgspec import Meta, Struct, field

from hangtop_core.model.frame import Frame
from hangtop_core.model.recorder.trace import Call, GroupInfo, Status, Trace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hangtop_probe.recorder.columns import Columns

T = TypeVar("T")

MAX_LENGTH = 100_000
"""Maximum entries of one rank that are accepted from a node; requests ask for far fewer."""
MAX_SHARED = 100_000
"""Distinct calls, stacks and groups that are kept to be shared; then the table is cleared."""
ENTRY = 35
"""Bytes of one entry in all columns."""
_WIDTHS = (2, 4, 4, 1, 8, 8, 8)
_NEAR = bytes((*range(0x40), *range(0xC0, 0x100)))
"""Highest bytes of numbers between -2**62 and 2**62."""

_Words = Annotated[str, Meta(max_length=400)]
_Number = Annotated[int, Meta(ge=-(2**62), le=2**62)]
_Path = Annotated[str, Meta(max_length=800)]


class FrameRow(Struct, frozen=True, array_like=True):
    """One frame on the wire."""

    name: _Path
    file: _Path
    line: Annotated[int, Meta(ge=0, le=2**31 - 1)]


class GroupRow(Struct, frozen=True, array_like=True):
    """One group on the wire, in the order of `GroupInfo`."""

    uid: _Words
    desc: _Words
    members: Annotated[str, Meta(max_length=400_000)] | None = None
    enqueued: _Number | None = None
    completed: _Number | None = None
    timeout_ms: Annotated[int, Meta(ge=0, le=2**53)] = 0


_CallRow = tuple[_Words, _Words, _Words, _Words, _Words]
_Site = Annotated[tuple[FrameRow, ...], Meta(max_length=128)]


class Parts(Struct, frozen=True):
    """Parts that the traces of one request share, by keys that are valid for this request."""

    calls: Annotated[dict[str, _CallRow], Meta(max_length=MAX_LENGTH)] = field(default_factory=dict)
    sites: Annotated[dict[str, _Site], Meta(max_length=MAX_LENGTH)] = field(default_factory=dict)
    groups: Annotated[dict[str, GroupRow], Meta(max_length=65_536)] = field(default_factory=dict)


class TraceRow(Struct, frozen=True):
    """One rank's recorder on the wire; calls, stacks and groups by their keys in `Parts`."""

    version: _Words = ""
    library: _Words = ""
    groups: Annotated[tuple[str, ...], Meta(max_length=65_536)] = ()
    calls: Annotated[tuple[str, ...], Meta(max_length=MAX_LENGTH)] = ()
    sites: Annotated[tuple[str, ...], Meta(max_length=MAX_LENGTH)] = ()
    statuses: Annotated[tuple[tuple[_Number, _Number, _Number], ...], Meta(max_length=65_536)] = ()
    group_ids: Annotated[tuple[tuple[_Number, _Words], ...], Meta(max_length=65_536)] = ()
    configured: bool = False
    length: Annotated[int, Meta(ge=0, le=MAX_LENGTH)] = 0
    dropped: Annotated[int, Meta(ge=0, le=2**31)] = 0
    wrapped: bool = False
    timeout_ms: Annotated[int, Meta(ge=0, le=2**53)] = 0
    columns: Annotated[str, Meta(max_length=8 << 20)] = ""
    """group, call, site, flag, seq, record, created: zlib and base64, little-endian."""


class Shared:
    """A table that keeps equal parts of all traces once. Used on the session's thread."""

    def __init__(self) -> None:
        self._parts: dict[object, object] = {}

    def share(self, part: T) -> T:
        """Return the equal part that was stored first."""
        if len(self._parts) > MAX_SHARED:
            self._parts.clear()
        return self._parts.setdefault((type(part), part), part)  # type: ignore[return-value]


class Unpacker:
    """Builds traces from the pieces of one request."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._calls: dict[str, Call] = {}
        self._sites: dict[str, tuple[Frame, ...]] = {}
        self._groups: dict[str, GroupInfo] = {}

    def learn(self, parts: Parts) -> None:
        """Store parts that later pieces refer to."""
        share = self._shared.share
        self._calls.update({key: share(Call(*row)) for key, row in parts.calls.items()})
        self._groups.update({key: share(_group(row)) for key, row in parts.groups.items()})
        for key, rows in parts.sites.items():
            self._sites[key] = share(tuple(share(frame(r.name, r.file, r.line)) for r in rows))

    def trace(self, row: TraceRow, rank: int, source: str, skew: float) -> Trace:
        """Build a trace, with its times on the head's clock.

        Args:
            row: the row as the node sent it.
            rank: rank of the recorder.
            source: where the trace comes from, for people.
            skew: seconds by which the node's clock is ahead.

        Raises:
            ValueError: its parts do not fit together; the text says how.
        """
        trace = Trace(rank, source, row.version, row.library)
        try:
            trace.groups = tuple(self._groups[key] for key in row.groups)
            trace.calls = tuple(self._calls[key] for key in row.calls)
            trace.sites = tuple(self._sites[key] for key in row.sites) or ((),)
        except KeyError as error:
            raise ValueError(f"refers to {str(error)[:40]}, which was never sent") from None
        trace.statuses = tuple(Status(*row_status) for row_status in row.statuses)
        trace.group_ids = dict(row.group_ids)
        trace.configured, trace.wrapped = row.configured, row.wrapped
        trace.length, trace.dropped, trace.timeout_ms = row.length, row.dropped, row.timeout_ms
        columns = _columns(row)
        trace.raw_group, trace.raw_call, trace.raw_site, trace.raw_flag = columns[:4]
        trace.raw_seq, trace.raw_record, trace.raw_created = columns[4:]
        check(trace)
        if skew:
            ahead = int(skew * 1e9)
            moved = array("q", [at and at - ahead for at in trace.created])
            trace.raw_created = moved.tobytes()
        trace.newest_ns = max(trace.created, default=0)
        return trace


def _group(row: GroupRow) -> GroupInfo:
    fields = row.uid, row.desc, row.members, row.enqueued, row.completed, row.timeout_ms
    return GroupInfo(*fields)


def _columns(row: TraceRow) -> list[bytes]:
    """Return the columns of a trace.

    Raises:
        ValueError: they do not have the expected length.
    """
    wanted = row.length * ENTRY
    inflate = zlib.decompressobj()
    try:
        data = inflate.decompress(b64decode(row.columns, validate=True), wanted + 1)
    except zlib.error as error:
        raise ValueError(f"its columns are damaged: {error}") from None
    if len(data) != wanted:
        raise ValueError(f"its columns hold {len(data)} bytes or more, not {wanted}")
    columns, at = [], 0
    for width in _WIDTHS:
        columns.append(data[at : at + width * row.length])
        at += width * row.length
    return columns


def check(trace: Trace) -> None:
    """Check lengths and indices of columns, by bytes where possible: 8,192 ranks have 16 million.

    Raises:
        ValueError: they are of different lengths, or an index is out of range.
    """
    columns: Iterable[tuple[bytes, Literal["H", "I"], int]] = (
        (trace.raw_group, "H", len(trace.groups)),
        (trace.raw_call, "I", len(trace.calls)),
        (trace.raw_site, "I", len(trace.sites)),
    )
    numbers = (trace.raw_seq, trace.raw_record, trace.raw_created)
    raws = (trace.raw_group, trace.raw_call, trace.raw_site, trace.raw_flag, *numbers)
    if any(len(raw) != width * trace.length for raw, width in zip(raws, _WIDTHS, strict=True)):
        raise ValueError("its columns are not as long as it says")
    if not all(_below(raw, kind, count) for raw, kind, count in columns):
        raise ValueError("it has entries of groups, calls or stacks that are not there")
    if any(raw[7::8].translate(None, _NEAR) for raw in numbers):
        raise ValueError("it has numbers far out of range")


def _below(raw: bytes, kind: Literal["H", "I"], count: int) -> bool:
    """Return whether all numbers of a column, little-endian, are below a count."""
    width = 2 if kind == "H" else 4
    if count < 256 and not any(raw[at::width].strip(b"\0") for at in range(1, width)):
        return not raw[::width].translate(None, bytes(range(count)))
    return not raw or max(memoryview(raw).cast(kind)) < count


def trace_of(columns: Columns, rank: int, source: str) -> Trace:
    """Return the trace of columns that were made in this process."""
    frames: Mapping[tuple[str, str, int], Frame] = {
        row: frame(*row) for site in columns.sites for row in site
    }
    return Trace(
        rank,
        source,
        columns.version,
        columns.library,
        groups=tuple(GroupInfo(*row) for row in columns.groups),
        calls=tuple(Call(*row) for row in columns.calls),
        sites=tuple(tuple(frames[row] for row in site) for site in columns.sites),
        statuses=tuple(Status(*status) for status in columns.statuses),
        group_ids=columns.group_ids,
        configured=columns.configured,
        length=columns.length,
        dropped=columns.dropped,
        wrapped=columns.wrapped,
        newest_ns=columns.newest_ns,
        timeout_ms=columns.timeout_ms,
        ended=columns.ended,
        why_ended=columns.why_ended,
        raw_group=columns.group.tobytes(),
        raw_call=columns.call.tobytes(),
        raw_site=columns.site.tobytes(),
        raw_flag=columns.flag,
        raw_seq=columns.seq.tobytes(),
        raw_record=columns.record.tobytes(),
        raw_created=columns.created.tobytes(),
    )


@lru_cache(maxsize=16384)
def short(file: str) -> str:
    """Return a path shortened to the part inside its package, or to its last two parts."""
    inside = re.split(r"/(?:site|dist)-packages/|/lib/python\d\.\d+/", file)[-1]
    return inside if inside != file else "/".join(file.rsplit("/", 2)[-2:])


def frame(name: str, file: str, line: int) -> Frame:
    """Return a frame as recorders have it."""
    return Frame(name, file, short(file), line)
