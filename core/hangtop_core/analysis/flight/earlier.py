"""Where ranks issued different operations as one number, and it ended all the same.

NCCL compares nothing: who gathers and who reduces exchange what they have, and each takes what it
got for its result. The operation ends, the results are wrong, and what follows on the same
connections may find parts of it there: only later something hangs that all have issued alike.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

import msgspec

from hangtop_core.analysis.flight.shift import Shift, locate
from hangtop_core.analysis.flight.trace import P2P, PART
from hangtop_core.analysis.flight.unlike import Differing

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from hangtop_core.analysis.flight.trace import Call, Trace
    from hangtop_core.analysis.flight.waits import Classes, Waits
    from hangtop_core.analysis.flight.world import Entry, World

LOOKED_BACK = 512
"""Numbers before what hangs that are compared: what ranks lived with for longer did not hang it."""
OFTEN = 3
"""So many times ranks differed and agreed again where they have lived with it."""
_ALIKE = ("all_reduce", "allreduce", "broadcast", "reduce")
"""Operations for which each rank has as many elements, of one type."""
_SHAPE = bytes(flag & (P2P | PART) for flag in range(256))
"""Leaves of flags what does not change while an operation is under way."""

Key = tuple[str, ...]


class Earlier(Differing, frozen=True, kw_only=True):
    """The first number of a group, over on all, as which ranks issued different operations."""

    seq: int
    again: int
    """How many times they differed, with numbers in between at which they did not."""
    oldest: bool
    """Whether no number before it is held: they may have differed before, too."""
    shift: Shift | None
    """Where the sequences part, where those of the others fit after a step left out or added."""


def earlier(waits: Waits, index: int) -> Earlier | None:
    """What differed before the oldest operation in flight of a group; None where nothing did.

    None also where ranks may rightly differ: in the sizes of what each has its own part of, in
    coalesced blocks, in sends and recvs.
    """
    world, group = waits.world, waits.world.groups[index]
    heads = [one.seq for one in waits.operations if (one.kind, one.group) == ("collective", index)]
    if not heads:
        return None
    limit = min(heads)
    common: dict[int, Key] = {}
    differ: set[int] = set()
    seen: set[object] = set()
    for rank in group.by_rank:
        trace = world.traces[rank]
        kinds = tuple(map(_what, trace.calls))
        local = trace.locals.get(group.uid, frozenset())
        # Most ranks have issued what another one has: comparing bytes takes a tenth of the time.
        flags = trace.raw_flag.translate(_SHAPE)
        columns = (kinds, local, trace.raw_group, trace.raw_seq, trace.raw_call, flags)
        if columns in seen:
            continue
        seen.add(columns)
        for seq, key in _sequence(trace, local, kinds, limit - LOOKED_BACK).items():
            if key and common.setdefault(seq, key) != key:
                differ.add(seq)
    seq = min(differ, default=limit)
    if seq >= limit:
        return None
    classes = _classes(world, index, seq)
    shift = None
    if len(differ) > 1:
        # Where they agree from there on, no step was left out: that would show in what follows.
        shift = locate(world, classes[1][1][0], index, classes[0][1])
    fits = shift is not None and shift.how != "differs"
    times = 1 + sum(after - before > 1 for before, after in pairwise(sorted(differ)))
    return Earlier(
        classes,
        seq=seq,
        again=times,
        oldest=seq == min(common) > 1,
        shift=shift if fits else None,
    )


def _classes(world: World, index: int, seq: int) -> Classes:
    kinds: dict[Key, list[Entry]] = defaultdict(list)
    for rank in sorted(world.groups[index].by_rank):
        entry = world.find(rank, index, seq)
        if entry is not None and (key := _what(entry.call)):
            kinds[key].append(entry)
    ordered = sorted(kinds.values(), key=lambda some: -len(some))
    return tuple((some[0], tuple(entry.rank for entry in some)) for some in ordered)


def _sequence(
    trace: Trace, local: Container[int], kinds: Sequence[Key], low: int
) -> dict[int, Key]:
    """By number what must be equal of a rank's collectives in a group, from a number on."""
    groups, flags, seqs, calls = trace.group, trace.raw_flag, trace.seq, trace.call
    found: dict[int, Key] = {}
    last: int | None = None
    for at in range(trace.length - 1, -1, -1):
        if groups[at] not in local or flags[at] & P2P:
            continue
        seq = seqs[at]
        # A higher one before it is of an earlier group of that name, which was destroyed.
        if seq < low or (last is not None and seq > last):
            break
        last = seq
        # Of a block the last entry stands for all of it.
        found.setdefault(seq, () if flags[at] & PART else kinds[calls[at]])
    return found


@lru_cache(maxsize=4096)
def _what(call: Call) -> Key:
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
