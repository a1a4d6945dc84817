"""One process group's collectives by sequence number: what was called, and how many came by when.

How many ranks have enqueued a number, and are through with it, follows from how far each member
came (`world.Member`), not from counting entries: where a ring has lost an entry, the rank has
issued it all the same. Entries tell what was called and when. Costs about half a microsecond for
each entry of the members' rings: for one group, when somebody looks at it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING

from msgspec import Struct

from hangtop_core.analysis.flight.alike import kind_of
from hangtop_core.analysis.flight.groups import Stage, stage
from hangtop_core.analysis.flight.waits import Node, Operation
from hangtop_core.model.recorder.trace import Call

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hangtop_core.analysis.flight.waits import Waits
    from hangtop_core.analysis.flight.world import World
    from hangtop_core.model.recorder.trace import Trace

MAX_NUMBERS = 2000
"""The newest numbers of a group that are listed; a ring of torch holds as many entries."""

_NEVER = 1 << 63


class NumberLine(Struct, frozen=True):
    """One collective of a group; or one send with its recv that is not over."""

    seq: int | None
    """None of a send."""
    call: Call | None
    """What most ranks issued; None when no ring holds it any more."""
    others: tuple[tuple[Call, int], ...]
    """What else was issued as this number, and by how many ranks."""
    size: int
    """How many ranks take part."""
    enqueued: int
    done: int
    """How many have issued it; how many of these are through."""
    unknown: int = 0
    """Members of which it is not known whether they have issued it."""
    first_ns: int = 0
    """When the first rank issued it, as `Trace.created` has it; 0 when unknown."""
    last_ns: int = 0
    operation: Operation | None = None
    """What waits in it, where a rank's oldest operation in flight is this one."""
    stage: Stage | None = None
    """How that gets on."""

    @property
    def key(self) -> str:
        """Identity within its group."""
        if self.seq is not None or self.operation is None:
            return f"#{self.seq}"
        return f"{self.operation.node.source}>{self.operation.node.target}"


def number_lines(world: World, waits: Waits, index: int) -> tuple[NumberLine, ...]:
    """The newest numbers of a group, ascending, then its sends that are not over.

    Args:
        world: the traces.
        waits: the graph made of it.
        index: of the group in `world.groups`.
    """
    group = world.groups[index]
    members = group.by_rank.values()
    newest = sorted(one.newest for one in members if one.newest is not None)
    done = sorted(one.done for one in members if one.newest is not None)
    known = len(newest)
    seen = _Seen(world, index, newest[-1] - MAX_NUMBERS + 1 if newest else 0)
    found = []
    for seq in sorted(seen.calls):
        enqueued = known - bisect_left(newest, seq)
        (call, _), *others = seen.kinds(seq)
        operation = waits.operations.get(Node("collective", index, seq))
        found.append(
            NumberLine(
                seq=seq,
                call=call,
                others=tuple(others),
                size=len(group.members),
                enqueued=enqueued,
                done=known - bisect_left(done, seq),
                unknown=len(group.members) - known,
                first_ns=seen.first.get(seq, 0),
                last_ns=seen.last.get(seq, 0),
                operation=operation,
                stage=stage(waits, operation) if operation is not None else None,
            )
        )
    sends = (one for one in waits.operations.values() if one.node.group == index)
    return (*found, *(_send(waits, one) for one in sends if one.node.kind == "p2p"))


def _send(waits: Waits, one: Operation) -> NumberLine:
    times = [entry.created_ns for entry in one.entries.values() if entry.created_ns]
    return NumberLine(
        seq=None,
        call=one.entry.call,
        others=(),
        size=2,
        enqueued=sum(rank not in one.missing for rank in one.entries),
        done=0,
        unknown=len(one.absent),
        first_ns=min(times, default=0),
        last_ns=max(times, default=0),
        operation=one,
        stage=stage(waits, one),
    )


class _Seen:
    """What the rings of a group's members hold of its collectives, from the number `low` on."""

    def __init__(self, world: World, index: int, low: int) -> None:
        self.first: dict[int, int] = {}
        self.last: dict[int, int] = {}
        self.calls: dict[int, Counter[int]] = {}
        self._numbers: dict[Call, int] = {}
        uid = world.groups[index].uid
        for rank in world.groups[index].by_rank:
            self._take(world.traces[rank], uid, low)
        self._all = tuple(self._numbers)

    def _take(self, trace: Trace, uid: str, low: int) -> None:
        seqs = trace.seq
        # Of a coalesced block the last entry stands for all of it.
        places = {seqs[at]: at for at in trace.places(uid) if seqs[at] >= low}
        calls, created, first, last = trace.call, trace.created, self.first, self.last
        numbers = [self._numbers.setdefault(call, len(self._numbers)) for call in trace.calls]
        for seq, at in places.items():
            counts = self.calls.get(seq)
            if counts is None:
                counts = self.calls[seq] = Counter()
            counts[numbers[calls[at]]] += 1
            when = created[at]
            if when:
                if when < first.get(seq, _NEVER):
                    first[seq] = when
                if when > last.get(seq, 0):
                    last[seq] = when

    def kinds(self, seq: int) -> Iterator[tuple[Call, int]]:
        """What was issued as a number, the most frequent first, equal enough calls together."""
        together: dict[tuple[str, ...], tuple[Call, int]] = {}
        for number, count in self.calls[seq].most_common():
            call = self._all[number]
            known, before = together.get(kind_of(call), (call, 0))
            together[kind_of(call)] = (known, before + count)
        yield from sorted(together.values(), key=lambda one: -one[1])
