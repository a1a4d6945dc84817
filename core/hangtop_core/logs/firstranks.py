"""The global ranks of nodes, from lines that tell a local and a global rank: pure.

torchrun numbers the ranks of a node one after the other, so all that say both agree on the rank of
the first one there. Those that do not, quote another rank.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hangtop_core.logs.prefix import Origin
    from hangtop_core.logs.whose import FileLog

MAX_DIGITS = 9
"""Of the number of a rank: longer ones are made up, and no format for numbers takes them."""
REPORTED = 1_000_000
"""Lines for which what torchrun reports counts."""
MANY = 2
"""Local ranks that must tell of a first rank, so that it is no quotation."""

Key = tuple["str | None", "int | None"]
"""A node, and the number of srun's label."""
Votes = dict[int, dict[int, int]]
"""By rank of the first one: lines by local rank."""


class FirstRanks:
    """Knows the first rank of each node."""

    def __init__(self, files: Sequence[FileLog]) -> None:
        keys = {(o.node or one.place.node, o.task) for one, o, _ in _local(files)}
        folders = {one.place.node for one in files if one.place.local is not None}
        names: dict[Key, Votes] = defaultdict(lambda: defaultdict(lambda: defaultdict(int)))
        self._one_node = max(len(keys), len(folders)) <= 1
        self._size = 1
        for one, origin, lines in _local(files):
            local = origin.local or 0
            self._size = max(self._size, local + 1)
            label = origin.label if origin.own else origin.rank
            rank = origin.rank if label is None else label
            if rank is not None:
                names[self._key(origin.node or one.place.node, origin.task)][rank - local][
                    local
                ] += lines
        for one in files:
            if one.place.local is None:
                continue
            self._size = max(self._size, one.place.local + 1)
            for stream in one.streams:
                rank, local = stream.origin.rank, one.place.local
                if rank is not None and stream.origin.local is None:
                    names[self._key(one.place.node, None)][rank - local][local] += stream.lines
        for key, local, rank in self._reported(files, keys):
            names[key][rank - local][local] += REPORTED
        self.shared = frozenset(key for key, votes in names.items() if self._is_shared(votes))
        """Labels under which several nodes print."""
        self._first = self._chosen(names)

    def _key(self, node: str | None, task: int | None) -> Key:
        return (None, None) if self._one_node else (node, task)

    def _reported(
        self, files: Sequence[FileLog], keys: set[Key]
    ) -> Iterator[tuple[Key, int, int]]:
        """What reports of torchrun say: the key of a node, a local and a global rank."""
        by_host = {node.partition(".")[0]: (node, task) for node, task in keys if node is not None}
        for one in files:
            here = {(o.node or one.place.node, o.task) for _, o, _ in _local([one])}
            told = [r for r in one.records if {"host", "local", "rank"} <= r.fields.keys()]
            alone = len({r.fields["host"] for r in told}) == 1 and len(here) == 1
            for record in told:
                fields = record.fields
                key = by_host.get(fields["host"].partition(".")[0])
                key = key or (next(iter(here)) if alone else None)
                if key is not None:
                    local, rank = int(fields["local"][:MAX_DIGITS]), int(fields["rank"][:MAX_DIGITS])
                    yield self._key(*key), local, rank

    def _is_plausible(self, first: int) -> bool:
        """Whether a node can begin there: nodes have as many ranks each, as a rule."""
        return first == 0 or first >= self._size

    def _is_shared(self, votes: Votes) -> bool:
        firsts = [f for f, some in votes.items() if len(some) >= MANY and f >= 0]
        return sum(map(self._is_plausible, firsts)) > 1

    def _chosen(self, names: Mapping[Key, Votes]) -> dict[Key, int]:
        """The first rank of each node, those first of which most local ranks tell."""
        ballots = [
            ((self._is_plausible(first), len(some), sum(some.values()), -first), key)
            for key, votes in names.items()
            for first, some in votes.items()
            if first >= 0 and key not in self.shared
        ]
        chosen: dict[Key, int] = {}
        taken = set()
        for (plausible, _, _, minus), key in sorted(ballots, key=lambda one: one[0], reverse=True):
            first = -minus
            if key in chosen or first in taken or (self._one_node and not plausible):
                continue
            chosen[key] = first
            taken.add(first)
        return chosen

    def rank(self, node: str | None, task: int | None, local: int) -> int | None:
        """The global rank of a local one, where known."""
        key = self._key(node, task)
        first = self._first.get(key)
        if first is not None:
            return first + local
        return local if self._one_node and not self.shared else None

    def is_elsewhere(self, node: str | None, task: int | None, rank: int) -> bool:
        """Whether a rank is known to be on another node."""
        return any(
            first <= rank < first + self._size
            for key, first in self._first.items()
            if key != self._key(node, task)
        )


def _local(files: Sequence[FileLog]) -> Iterator[tuple[FileLog, Origin, int]]:
    """The streams with a label of a local rank, and how many lines they have."""
    for one in files:
        for stream in one.streams:
            if stream.origin.local is not None:
                yield one, stream.origin, stream.lines
