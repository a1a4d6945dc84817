"""What must be equal of a call on all ranks, and ranks that have issued the same ones."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

import msgspec

from hangtop_core.model.recorder.trace import P2P, PART

if TYPE_CHECKING:
    from hangtop_core.analysis.flight.world import Entry
    from hangtop_core.model.recorder.trace import Call, Trace

_ALIKE = ("all_reduce", "allreduce", "broadcast", "reduce")
"""Operations for which each rank has as many elements, of one type."""
_ROOTED = ("broadcast", "gather", "scatter", "reduce")
_SHAPE = bytes(flag & (P2P | PART) for flag in range(256))
"""Leaves of flags what does not change while an operation is under way."""

Key = tuple[str, ...]


class Outlines:
    """Numbers what the recorders of ranks hold, but for times and states: equal ones are one."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        self._by_rank: dict[int, tuple[int, tuple[Key, ...]]] = {}

    def of(self, trace: Trace) -> tuple[int, tuple[Key, ...]]:
        """Return the number of a trace's outline, and what must be equal of each of its calls."""
        if trace.rank not in self._by_rank:
            kinds = tuple(map(key_of, trace.calls))
            flags = trace.raw_flag.translate(_SHAPE)
            columns = (kinds, trace.raw_group, trace.raw_seq, trace.raw_call, flags)
            number = self._numbers.setdefault(columns, len(self._numbers))
            self._by_rank[trace.rank] = number, kinds
        return self._by_rank[trace.rank]


@lru_cache(maxsize=4096)
def key_of(call: Call) -> Key:
    """What must be equal of a call on all ranks; empty of one in which each may differ."""
    op = call.op.lower().lstrip("_")
    if "coalesced" in op or call.kind != "collective":
        return ()
    op = op.removesuffix("_base").removesuffix("_oop")
    if op.startswith(_ALIKE) and not op.startswith("reduce_scatter") and "sparse" not in op:
        return op, _elements(call.inputs), call.input_types
    return (op,)


def _elements(inputs: str) -> str:
    """How many elements are put in, however they are shaped; the text where that is not known."""
    try:
        sizes = msgspec.json.decode(inputs, type=list[list[int]])
    except (msgspec.MsgspecError, RecursionError):
        return inputs
    return str(sum(prod(size) for size in sizes))


def rooted(call: Call) -> bool:
    """Whether one rank of a call is its root, so that it may be over on some before all join."""
    op = call.op.lower().lstrip("_")
    return op.startswith(_ROOTED) and not op.startswith("reduce_scatter")


def kind(entry: Entry) -> tuple[str, ...]:
    """What must be equal on all ranks that take part in one collective."""
    return kind_of(entry.call)


def kind_of(call: Call) -> tuple[str, ...]:
    """The same of a call.

    Sizes may differ where each rank has its own part: all_to_all, and the side of scatter and
    gather that only the root has.
    """
    op = call.op.lower().lstrip("_")
    if "coalesced" in op:
        return (op,)
    if "all_to_all" in op or "alltoall" in op:
        return (op, call.input_types)
    if op.startswith("scatter"):
        return (op, call.outputs, call.output_types)
    if op.startswith("gather"):
        return (op, call.inputs, call.input_types)
    return (op, call.inputs, call.outputs, call.input_types)
