"""What ranks in a circle of groups called before what they wait in now."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from functools import cached_property
from itertools import cycle, pairwise
from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.analysis.flight.alike import kind

if TYPE_CHECKING:
    from hangtop_core.analysis.flight.waits import Operation, Waits
    from hangtop_core.analysis.flight.world import Entry

RECENT = 512
"""Calls of each rank that are compared with one another."""


class Pasts:
    """The past of each rank, worked out once."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._by_rank: dict[int, Past] = {}

    def of(self, rank: int) -> Past:
        """Return the past of a rank."""
        if rank not in self._by_rank:
            self._by_rank[rank] = Past(self._waits, rank)
        return self._by_rank[rank]


class Lack(NamedTuple):
    """What a rank has not called in this round."""

    calls: frozenset[tuple[int, str]] = frozenset()
    """Group and operation of each."""
    rounds: int = 0
    """Earlier ones in which it did, in the same order."""


class Past:
    """What a rank called before what it waits in first."""

    def __init__(self, waits: Waits, rank: int) -> None:
        self._world, self._rank = waits.world, rank
        oldest = waits.oldest(rank)
        self._here = waits.operations[oldest].entries[rank] if oldest is not None else None

    def left_out(self, operation: Operation) -> tuple[Entry, Entry, Entry] | None:
        """Whether in earlier iterations a rank called an operation before what it waits in now.

        If so: what it waits in, the same the last time, and the operation before that.
        """
        here, group = self._here, operation.node.group
        if here is None or not self._alike:
            return None
        last = self._alike[-1]
        before = self._previous(last, group)
        if before is None or before.group != group or kind(before) != kind(operation.entry):
            return None
        # The same was due before the present call, and is not there.
        places = self._places[group]
        since = places[bisect_right(places, last) : bisect_left(places, here.at)]
        if any(is_alike(self._entry(at), before) for at in since):
            return None
        return here, self._entry(last), before

    def kept(self, left: Operation, own: tuple[Entry, Entry, Entry]) -> bool:
        """Whether it called that before what it waits in each time, in two iterations at least."""
        group, alike = left.node.group, self._alike
        before = (self._previous(at, group) for at in alike)
        with_other = len(alike) - (self._previous(alike[0], group) is None)
        return with_other > 1 and all(one is None or is_alike(one, own[2]) for one in before)

    def is_without(self, operation: Operation) -> bool:
        """Whether a call as that which others wait for is one that it made in earlier rounds."""
        call = (operation.node.group, operation.entry.call.op)
        return self.lack is not None and call in self.lack.calls

    def has_fewer(self, operation: Operation) -> bool:
        """Whether it called less of what others wait for than usual before what it waits in now.

        A round ends where it begins with calls as that one: alike calls may be several in a row.
        """
        here, wanted, group = self._here, kind(operation.entry), operation.node.group
        if here is None:
            return False
        trace = self._world.traces[self._rank]
        calls = [
            self._entry(at)
            for at in range(max(here.at - RECENT, 0), here.at + 1)
            if self._world.group_of(self._rank, trace.group[at]) in (group, here.group)
        ]
        ends = [
            n
            for n, one in enumerate(calls)
            if n and calls[n - 1].group != here.group and is_alike(one, here)
        ]
        counts = [
            sum(one.group == group and kind(one) == wanted for one in calls[first:last])
            for first, last in pairwise(ends)
        ]
        regular = len(set(counts[-3:-1])) == 1
        return bool(ends) and ends[-1] == len(calls) - 1 and regular and counts[-1] < counts[-2]

    @property
    def is_as_usual(self) -> bool:
        """Whether it came to where it waits by the calls of earlier rounds."""
        return self.lack is not None and not self.lack.calls

    @cached_property
    def lack(self) -> Lack | None:
        """The calls of earlier rounds that it did not make in this one before its last few calls.

        Of its history that part counts which ends in the same calls as now. Empty where it does as
        before, as far as its ring goes back; None where its last call alone is like one before.
        """
        calls = self._latest()
        alike, at = 0, -1
        for end in range(len(calls) - 2, -1, -1):
            length, apart = 0, len(calls) - 1 - end  # a round is not compared with a part of itself
            while length <= min(end, apart - 1) and calls[end - length] == calls[-1 - length]:
                length += 1
            if length > alike:
                alike, at = length, end
        if alike == 0 or at < alike:
            return Lack() if alike > 1 else None
        if alike == 1:
            return None
        here, first = calls[-1 - alike], at - alike + 1
        while first and calls[first - 1] != here:
            first -= 1
        if not first:
            return None
        left = calls[first : at - alike + 1]
        # Of what is repeated any repetition may be the one that is not there, also the last; and as
        # long as nothing else has come, the round is not over.
        again = zip(calls[-alike:], cycle(left), strict=False)
        after = next((n for n, (call, one) in enumerate(again) if call != one), alike)
        if alike - after <= 1:
            return None
        whole = calls[first : at + 1]
        rounds = sum(calls[n : n + len(whole)] == whole for n in range(first + 1))
        group_of = self._world.group_of
        return Lack(frozenset((group_of(self._rank, group), op) for group, op in left), rounds)

    def _latest(self) -> list[tuple[int, str]]:
        """Group and operation of its last calls, up to the one that it waits in first."""
        trace = self._world.traces[self._rank]
        end = self._here.at + 1 if self._here is not None else 0
        return [
            (trace.group[at], trace.calls[trace.call[at]].op)
            for at in range(max(end - RECENT, 0), end)
        ]

    @cached_property
    def _places(self) -> dict[int, list[int]]:
        """Positions of the entries of each group."""
        places: dict[int, list[int]] = defaultdict(list)
        for at, local in enumerate(self._world.traces[self._rank].group):
            places[self._world.group_of(self._rank, local)].append(at)
        return places

    @cached_property
    def _alike(self) -> list[int]:
        """Positions of earlier calls as the one that it waits in."""
        here = self._here
        if here is None:
            return []
        places = self._places[here.group]
        earlier = places[: bisect_left(places, here.at)]
        return [at for at in earlier if is_alike(self._entry(at), here)]

    def _previous(self, at: int, group: int) -> Entry | None:
        """The entry of a group, or of that of the call in which it waits, before another one."""
        both = [self._places[group]]
        if self._here is not None:
            both.append(self._places[self._here.group])
        before = [places[place - 1] for places in both if (place := bisect_left(places, at))]
        return self._entry(max(before)) if before else None

    def _entry(self, at: int) -> Entry:
        return self._world.entry(self._rank, at)


def is_alike(one: Entry, other: Entry) -> bool:
    """Whether it is the same call in another iteration: by the same way, where that is recorded."""
    known = bool(one.stack and other.stack)
    same = one.group == other.group and kind(one) == kind(other)
    return same and (one.stack == other.stack or not known)
