"""The global ranks of nodes, from lines that give a local and a global rank: pure.

torchrun numbers the ranks of a node consecutively, so all lines with both agree on the first rank
of the node. A line that disagrees quotes another rank.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import TYPE_CHECKING

from hangtop_core.logs.parsing.tangle import MIXED
from hangtop_core.model.file_log import MAX_DIGITS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hangtop_core.logs.parsing.hosts import Hosts
    from hangtop_core.model.file_log import FileLog, Origin

MAX_PLACES = 64
"""Maximum number of nodes that are checked for one rank: only forged lines have more in this
range."""
REPORTED = 1_000_000
"""Number of lines that a torchrun report counts for."""
MANY = 2
"""Number of local ranks that must agree on a first rank, to exclude a quotation."""

Key = tuple["str | None", "int | None"]
"""A node, and the number of srun's label."""
Votes = dict[int, dict[int, int]]
"""By first rank: number of lines by local rank."""
Ballot = tuple[Key, int, int, int]
"""A node, a local and a global rank, and the number of lines with these."""
REPORT = frozenset({"host", "local", "rank"})
"""Fields of torchrun's report on a rank."""


class FirstRanks:
    """The first rank of each node."""

    def __init__(self, files: Sequence[FileLog], hosts: Hosts) -> None:
        self._hosts = hosts
        self._labels = {key_of(file, o) for file in files for o in _labelled(file)}
        folders = {file.place.node for file in files if file.place.local is not None}
        self._one_node = max(len(self._labels), len(folders)) <= 1
        local = [file.place.local or 0 for file in files]
        local += [o.local or 0 for file in files for o in _labelled(file)]
        self._size = max(local, default=0) + 1
        """Number of ranks of a node seen so far."""
        votes = self._votes(files)
        self.shared = frozenset(
            (
                *(key for key, votes_of_key in votes.items() if self._is_shared(votes_of_key)),
                *(self._key(*key) for key in (*_of_several_hosts(files), *_mixed(files))),
            )
        )
        """Labels under which several nodes print."""
        self._first = self._chosen(votes)
        self._places = sorted(
            ((first, key) for key, first in self._first.items()), key=lambda place: place[0]
        )
        self._are_global = _are_global(files)
        several = len(self._first) > 1
        self.top = max(self._first.values()) + self._size - 1 if several else -1
        """The highest rank, if several nodes have as many ranks each."""

    def _key(self, node: str | None, task: int | None) -> Key:
        return (None, None) if self._one_node else (node, task)

    def _votes(self, files: Sequence[FileLog]) -> dict[Key, Votes]:
        votes: dict[Key, Votes] = defaultdict(lambda: defaultdict(lambda: defaultdict(int)))
        for ballots in (self._of_lines(files), self._of_reports(files), _of_watchdogs(files)):
            for key, local, rank, lines in ballots:
                votes[self._key(*key)][rank - local][local] += lines
        return votes

    def _of_lines(self, files: Sequence[FileLog]) -> Iterator[Ballot]:
        """Yield ballots from lines with both ranks, and from files of a single local rank."""
        for file in files:
            for stream in file.streams:
                origin = stream.origin
                local = origin.local if origin.local is not None else file.place.local
                rank = origin.label if origin.label is not None else origin.rank
                foreign = origin.label is None and self._hosts.is_foreign(origin)
                if local is not None and rank is not None and not foreign:
                    yield key_of(file, origin), local, rank, stream.lines

    def _of_reports(self, files: Sequence[FileLog]) -> Iterator[Ballot]:
        """Yield ballots from torchrun's reports."""
        hosts: dict[str, Key] = {key[0].partition(".")[0]: key for key in self._labels if key[0]}
        for file in files:
            keys = {key_of(file, origin) for origin in _labelled(file)}
            reports = [r.fields for r in file.records if r.fields.keys() >= REPORT]
            alone = len({fields["host"] for fields in reports}) == 1 == len(keys)
            for fields in reports:
                key = hosts.get(fields["host"].partition(".")[0])
                key = key or (next(iter(keys)) if alone else None)
                if key is not None:
                    local, rank = (int(fields[name][:MAX_DIGITS]) for name in ("local", "rank"))
                    yield key, local, rank, REPORTED

    def _is_plausible(self, first: int) -> bool:
        """Whether a node can begin at a rank: nodes usually have equally many ranks."""
        return first == 0 or first >= self._size

    def _is_shared(self, votes: Votes) -> bool:
        firsts = [f for f, lines in votes.items() if len(lines) >= MANY and f >= 0]
        return sum(map(self._is_plausible, firsts)) > 1

    def _chosen(self, votes: Mapping[Key, Votes]) -> dict[Key, int]:
        """Return the first rank of each node, those with the most local ranks first.

        A node with only one candidate comes before nodes that quote others as well.
        """
        ballots = [
            (
                (self._is_plausible(first), len(lines), -len(firsts), sum(lines.values()), -first),
                key,
            )
            for key, firsts in votes.items()
            for first, lines in firsts.items()
            if first >= 0 and key not in self.shared
        ]
        chosen: dict[Key, int] = {}
        taken = set()
        for (plausible, *_, minus), key in sorted(
            ballots, key=lambda ballot: ballot[0], reverse=True
        ):
            first = (-minus, key in self._labels)
            if key in chosen or first in taken or (self._one_node and not plausible):
                continue
            chosen[key] = -minus
            taken.add(first)
        return chosen

    def rank(self, node: str | None, task: int | None, local: int) -> int | None:
        """Return the global rank of a local rank, None if unknown."""
        if self._are_global:
            return local
        key = self._key(node, task)
        first = self._first.get(key)
        if first is not None:
            return first + local
        return local if self._one_node and not self.shared else None

    def is_elsewhere(self, node: str | None, task: int | None, rank: int) -> bool:
        """Whether a rank is known to be on another node.

        A node that is known by its folder may be the same as one that is known by its label.
        """
        mine = self._key(node, task)
        begin = bisect_left(self._places, rank - self._size + 1, key=lambda place: place[0])
        for first, key in self._places[begin : begin + min(self._size, MAX_PLACES)]:
            kind = (key in self._labels) == (mine in self._labels)
            if first <= rank and key != mine and kind:
                return True
        return False


def key_of(file: FileLog, origin: Origin) -> Key:
    """Return the label that an origin prints under."""
    return origin.node or file.place.node, origin.task


def _are_global(files: Sequence[FileLog]) -> bool:
    """Whether labels of several nodes hold global ranks, as `hangtop run` writes them.

    Then no two nodes share a number, each has consecutive numbers, and torch's own prefix agrees
    under most labels; under others it is a quotation.
    """
    rows: dict[Key, set[int]] = defaultdict(set)
    agreed: set[int | None] = set()
    differs: set[int | None] = set()
    for file, origin in ((entry, origin) for entry in files for origin in _labelled(entry)):
        rows[key_of(file, origin)].add(origin.local or 0)
        if origin.rank is not None:
            (agreed if origin.rank == origin.local else differs).add(origin.local)
    whole = sorted(number for row in rows.values() for number in row)
    if len(rows) < 2 or whole != list(range(len(whole))) or len(differs) > len(agreed) // 2:
        return False
    in_rows = all(max(row) - min(row) == len(row) - 1 for row in rows.values())
    return in_rows and (bool(agreed) or len(whole) > len(rows))


def _labelled(file: FileLog) -> list[Origin]:
    """Return the origins of a file that have a label with a local rank."""
    return [stream.origin for stream in file.streams if stream.origin.local is not None]


def _of_watchdogs(files: Sequence[FileLog]) -> list[Ballot]:
    """Return ballots of watchdogs before torch 2.2, `[Rank 9]`; none if that is a group's rank."""
    ballots = [
        (key_of(file, record.origin), record.origin.local, int(rank[:MAX_DIGITS]), 1)
        for file in files
        for record in file.records
        if record.code == "T1" and not record.origin.own and record.origin.local is not None
        for rank in (record.fields.get("rank"),)
        if rank is not None
    ]
    firsts = {(key, rank - local) for key, local, rank, _ in ballots}
    alike = len(firsts) == len({k for k, _ in firsts}) == len({f for _, f in firsts})
    return ballots if alike else []


def _of_several_hosts(files: Sequence[FileLog]) -> Iterator[Key]:
    """Return the labels under which NCCL prints several hosts."""
    hosts: dict[Key, set[str]] = defaultdict(set)
    for file in files:
        for record in file.records:
            if record.origin.local is not None and record.fields.keys() >= {"host", "pid"}:
                hosts[key_of(file, record.origin)].add(record.fields["host"].partition(".")[0])
    return (key for key, names in hosts.items() if len(names) > 1)


def _mixed(files: Sequence[FileLog]) -> Iterator[Key]:
    """Return the labels whose tracebacks are mostly mixed line by line."""
    mixed: dict[Key, set[int | None]] = defaultdict(set)
    every: dict[Key, set[int | None]] = defaultdict(set)
    for file in files:
        for record in file.records:
            if record.origin.local is not None and record.code == "traceback":
                key = key_of(file, record.origin)
                every[key].add(record.origin.local)
                if MIXED in record.fields:
                    mixed[key].add(record.origin.local)
    return (
        k for k, ranks in mixed.items() if len(ranks) >= MANY and len(every[k]) < 2 * len(ranks)
    )
