"""Flight recorders in a capture: every call, stack and group once, and columns of numbers.

The form is that of the nodes' answers, so the same reader with the same limits reads it.
"""

from __future__ import annotations

import zlib
from base64 import b64encode
from typing import TYPE_CHECKING, Any

import msgspec

from hangtop_core.capture.changes import Damaged
from hangtop_core.capture.form import MAX_TRACES
from hangtop_core.model.recorder.columns import Parts, Shared, TraceRow, Unpacker

if TYPE_CHECKING:
    from collections.abc import Hashable

    from hangtop_core.model.recorder.trace import Trace

_COLUMNS = ("group", "call", "site", "flag", "seq", "record", "created")


class Packer:
    """Number traces, and return what has to be written before a trace can be referred to."""

    def __init__(self) -> None:
        self._indices: dict[Hashable, str] = {}
        self._traces: dict[int, tuple[int, Trace]] = {}
        self._count = 0
        self.bytes = 0
        """Compressed bytes of all columns so far."""

    def number_of(self, trace: Trace) -> int | None:
        """Return the number of this trace, or of the rank's last one if equal; None otherwise."""
        number, last = self._traces.get(trace.rank, (0, None))
        if last is None or not (last is trace or _equal(last, trace)):
            return None
        return number

    def pack(self, trace: Trace) -> tuple[int, dict[str, Any], dict[str, Any]]:
        """Return a new number, the parts not written before, and the trace that refers to them."""
        new: dict[str, dict[str, Any]] = {"calls": {}, "sites": {}, "groups": {}}

        def key(kind: str, part: Hashable, row: Any) -> str:
            index = self._indices.get((kind, part))
            if index is None:
                index = self._indices[kind, part] = str(len(self._indices))
                new[kind][index] = row
            return index

        calls = [
            key("calls", c, [c.name, c.inputs, c.outputs, c.input_types, c.output_types])
            for c in trace.calls
        ]
        sites = [
            key("sites", site, [[f.name, f.file, f.line] for f in site]) for site in trace.sites
        ]
        groups = [
            key("groups", g, [g.uid, g.desc, g.members, g.enqueued, g.completed, g.timeout_ms])
            for g in trace.groups
        ]
        columns = zlib.compress(b"".join(getattr(trace, f"raw_{name}") for name in _COLUMNS), 6)
        self.bytes += len(columns)
        row = TraceRow(
            version=trace.version,
            library=trace.library,
            groups=tuple(groups),
            calls=tuple(calls),
            sites=tuple(sites),
            statuses=tuple((s.pg_id, s.enqueued, s.completed) for s in trace.statuses),
            group_ids=tuple(trace.group_ids.items()),
            configured=trace.configured,
            length=trace.length,
            dropped=trace.dropped,
            wrapped=trace.wrapped,
            timeout_ms=trace.timeout_ms,
            columns=b64encode(columns).decode(),
        )
        number, self._count = self._count, self._count + 1
        self._traces[trace.rank] = (number, trace)
        head = {"trace": number, "rank": trace.rank, "source": trace.source}
        head_row = {**head, "newest_ns": trace.newest_ns, "row": msgspec.to_builtins(row)}
        return number, {kind: rows for kind, rows in new.items() if rows}, head_row


def _equal(first: Trace, second: Trace) -> bool:
    return (
        all(getattr(first, f"raw_{name}") == getattr(second, f"raw_{name}") for name in _COLUMNS)
        and (first.groups, first.calls, first.sites) == (second.groups, second.calls, second.sites)
        and (first.statuses, first.timeout_ms) == (second.statuses, second.timeout_ms)
    )


class Traces:
    """Read traces back."""

    def __init__(self) -> None:
        self._unpacker = Unpacker(Shared())
        self._traces: dict[int, Trace] = {}

    def __len__(self) -> int:
        return len(self._traces)

    def learn(self, raw: Any) -> None:
        """Take parts.

        Raises:
            Damaged: when they are invalid.
        """
        try:
            self._unpacker.learn(msgspec.convert(raw, Parts))
        except (msgspec.MsgspecError, RecursionError) as error:
            raise Damaged(f"parts of recorders: {str(error)[:200]}") from None

    def add(self, raw: dict[str, Any]) -> None:
        """Take a trace.

        Raises:
            Damaged: when its parts do not fit together.
        """
        try:
            number = msgspec.convert(raw.get("trace"), int)
            rank = msgspec.convert(raw.get("rank"), int)
            newest = msgspec.convert(raw.get("newest_ns", 0), int)
            row = msgspec.convert(raw.get("row"), TraceRow)
            source = str(raw.get("source", ""))[:400]
            trace = self._unpacker.trace(row, rank, source, 0.0)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise Damaged(f"a recorder: {str(error)[:200]}") from None
        if len(self._traces) >= MAX_TRACES:
            raise Damaged(f"it has more than {MAX_TRACES} recorders")
        if 0 <= newest < 1 << 62:
            trace.newest_ns = newest
        self._traces[number] = trace

    def get(self, number: int) -> Trace:
        """Return a trace by its number.

        Raises:
            Damaged: when it was never written.
        """
        if number not in self._traces:
            raise Damaged(f"recorder {number} is not there")
        return self._traces[number]
