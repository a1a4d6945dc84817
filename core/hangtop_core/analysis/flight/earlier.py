"""Where ranks issued different operations as one number, and it ended all the same.

NCCL compares nothing: who gathers and who reduces exchange what they have, and each takes what it
got for its result. The operation ends, the results are wrong, and what follows on the same
connections may find parts of it there: only later something hangs that all have issued alike.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

from hangtop_core.analysis.flight.alike import Key, key_of
from hangtop_core.analysis.flight.shift import Shift, locate
from hangtop_core.analysis.flight.unlike import Differing
from hangtop_core.model.recorder.trace import PART

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.analysis.flight.waits import Classes, Waits
    from hangtop_core.analysis.flight.world import Entry, World
    from hangtop_core.model.recorder.trace import Trace

LOOKED_BACK = 512
"""Numbers before what hangs that are compared: what ranks lived with for longer did not hang it."""
OFTEN = 3
"""So many times ranks differed and agreed again where they have lived with it."""


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
    limit = waits.oldest_numbers.get(index)
    if limit is None:
        return None
    common: dict[int, Key] = {}
    differ: set[int] = set()
    seen: set[object] = set()
    for rank in group.by_rank:
        trace = world.traces[rank]
        # Most ranks have issued what another one has: comparing bytes takes a tenth of the time.
        outline, kinds = waits.outlines.of(trace)
        columns = (outline, trace.locals.get(group.uid))
        if columns in seen:
            continue
        seen.add(columns)
        for seq, key in _sequence(trace, group.uid, kinds, limit - LOOKED_BACK).items():
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
        if entry is not None and (key := key_of(entry.call)):
            kinds[key].append(entry)
    ordered = sorted(kinds.values(), key=lambda some: -len(some))
    return tuple((some[0], tuple(entry.rank for entry in some)) for some in ordered)


def _sequence(trace: Trace, uid: str, kinds: Sequence[Key], low: int) -> dict[int, Key]:
    """By number what must be equal of a rank's collectives in a group, from a number on."""
    flags, seqs, calls = trace.raw_flag, trace.seq, trace.call
    found: dict[int, Key] = {}
    last: int | None = None
    for at in reversed(trace.places(uid)):
        seq = seqs[at]
        # A higher one before it is of an earlier group of that name, which was destroyed.
        if seq < low or (last is not None and seq > last):
            break
        last = seq
        # Of a block the last entry stands for all of it.
        found.setdefault(seq, () if flags[at] & PART else kinds[calls[at]])
    return found
