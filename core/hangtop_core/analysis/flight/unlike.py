"""Where ranks went on with different data types, and came apart by what each read in the result.

Bytes are counted, and types are not compared: eight bytes of an integer are paired with those of a
float. The operation ends, each rank reads something else in its result, or has issued another
number of operations for the same tensors, and only later they hang in operations that differ.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from hangtop_core.analysis.flight.alike import kind
from hangtop_core.analysis.flight.shift import compared, is_moved
from hangtop_core.analysis.flight.waits import Classes, classes, minority
from hangtop_core.model.recorder.trace import PART

if TYPE_CHECKING:
    from hangtop_core.analysis.flight.waits import Operation
    from hangtop_core.analysis.flight.world import Entry, World
    from hangtop_core.model.recorder.trace import Call

_OWN_PARTS = ("all_to_all", "alltoall", "scatter", "gather", "send", "recv", "barrier")
"""Operations in which ranks may give, or get, each something else."""
_BYTES = {
    **dict.fromkeys(("Double", "Long", "UInt64", "ComplexFloat"), 8),
    **dict.fromkeys(("Float", "Int", "UInt32", "ComplexHalf"), 4),
    **dict.fromkeys(("Half", "BFloat16", "Short", "UInt16"), 2),
    **dict.fromkeys(("Byte", "Char", "Bool"), 1),
}
"""Bytes of one element by the names that recorders have for types."""


class Differing(Struct, frozen=True):
    """A collective of a group in which ranks differ."""

    classes: Classes
    """One entry of each kind with its ranks, the most frequent first."""

    @property
    def odd(self) -> tuple[int, ...]:
        """The ranks that differ from most."""
        return minority(self.classes)

    @property
    def tied(self) -> bool:
        """Whether there is no majority."""
        return len(self.classes[0][1]) == len(self.classes[1][1])


class Unlike(Differing, frozen=True):
    """The first collective of a group in which ranks differ, and only in the data type."""

    agreed: bool
    """Whether ranks have issued the same since then, before they came apart."""


def unlike(world: World, operation: Operation) -> Unlike | None:
    """Where ranks that disagree about an operation first differed, if that was a data type.

    None where they differ in anything else first, or where that is lost; where what followed are
    the calls of the others moved by one, or others issue such a call, too; where other ranks came
    apart; and where they agreed, and differed again: then they have lived with it.
    """
    index, most = operation.node.group, operation.classes[0][1]
    if operation.node.kind != "collective" or len(operation.classes) < 2:
        return None
    own, usual = compared(world, operation.classes[1][1][0], index, most)
    common = [seq for seq in sorted(own.keys() & usual.keys()) if seq < operation.node.seq]
    differ = [seq for seq in common if kind(own[seq]) != kind(usual[seq])]
    if not differ or (differ[0] == common[0] and differ[0] > 1):
        return None
    first = differ[0]
    after = [seq for seq in common if seq >= first]
    run = next((n for n, seq in enumerate(after) if seq not in differ), len(after))
    if len(differ) > run or not all(_only_type(own[seq], usual[seq]) for seq in differ):
        return None
    if is_moved(own, usual, first) or kind(own[first]) in map(kind, usual.values()):
        return None
    members = world.groups[index].members
    found = {rank: one for rank in members if (one := world.find(rank, index, first)) is not None}
    known = Unlike(classes(found), run < len(after))
    if len(known.classes) < 2 or not set(known.odd) <= {*operation.mismatched}:
        return None
    return known


def _only_type(one: Entry, other: Entry) -> bool:
    """Whether two entries are the same call with the same bytes of another type."""
    a, b = one.call, other.call
    op = a.op.lower().lstrip("_")
    if a.op != b.op or op.startswith(_OWN_PARTS) or "coalesced" in op:
        return False
    if (one.flag | other.flag) & PART or one.site != other.site:
        return False  # called from another line it is another call
    types = (a.input_types, b.input_types)
    if types[0] == types[1] or not all(t.strip("[]") for t in types):
        return False
    return (a.inputs, a.outputs) == (b.inputs, b.outputs) or same_bytes(a, b)


def same_bytes(one: Call, other: Call) -> bool:
    """Whether two calls put in as many bytes; False where that is not known."""
    sizes = {_bytes(one), _bytes(other)}
    return len(sizes) == 1 and None not in sizes


def _bytes(call: Call) -> int | None:
    try:
        sizes = msgspec.json.decode(call.inputs, type=list[list[int]])
        types = msgspec.json.decode(call.input_types.replace("'", '"'), type=list[str])
        return sum(prod(size) * _BYTES[t] for size, t in zip(sizes, types, strict=True))
    except (msgspec.MsgspecError, RecursionError, KeyError, ValueError):
        return None
