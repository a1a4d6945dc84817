"""Which ranks are not of a node: what it prints with torch's own prefix of one is a quotation.

A pod, a container or a host that a launcher's label names may quote a rank of another one,
`[pod/worker-1/main] [rank0]: Traceback`. Three things tell: NCCL's lines of each process, prefixes
that other nodes print as well, and the numbers in the names of nodes: no node has ranks below its
own number, where ranks are numbered in the order of nodes.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from hangtop_core.model.file_log import MAX_DIGITS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from hangtop_core.model.file_log import FileLog, Origin

ROW = frozenset({0, 1, 2})
"""Ranks that are of the node that prints them all, whatever its name says."""
_NUMBER = re.compile(r"(?<![A-Za-z0-9])[A-Za-z]*(\d{1,9})(?![A-Za-z0-9])")
_HEAD = re.compile(r"master|chief|head|leader|launcher")
"""The node of rank 0 of operators that number the other nodes apart, as PyTorchJob does."""
_PROCESS = "("
"""How a label of Ray begins, which names a process."""

Ranks = dict[str, set[int]]
"""By label."""


class Hosts:
    """Knows which ranks are not of a node."""

    def __init__(self, files: Sequence[FileLog]) -> None:
        origins = [stream.origin for one in files for stream in one.streams]
        labels = {label for origin in origins if (label := _label(origin)) is not None}
        printed = _printed(origins)
        numbers = _numbers(labels)
        self._numbers = {} if _contradicts(numbers, printed) else numbers
        self._home = _homes(printed, self._numbers) | dict(_by_nccl(files))
        counts = Counter(self._home.values())
        self._only = {label: rank for rank, label in self._home.items() if counts[label] == 1}

    def is_foreign(self, origin: Origin) -> bool:
        """Whether the rank in torch's own prefix is known not to be of the node that prints it."""
        label = _label(origin)
        if label is None or origin.rank is None:
            return False
        below = origin.rank < self._numbers.get(label, 0)
        return below or self._home.get(origin.rank, label) != label

    def only(self, origin: Origin) -> int | None:
        """Return the rank of a node of which no other one is known."""
        return self._only.get(_label(origin) or "")


def _label(origin: Origin) -> str | None:
    """Return what tells the node, or the process, of who prints."""
    return origin.group if (origin.group or "").startswith(_PROCESS) else origin.node


def _printed(origins: Iterable[Origin]) -> Ranks:
    """Return the ranks in torch's own prefix that every label is before."""
    printed: Ranks = defaultdict(set)
    for origin in origins:
        label = _label(origin)
        if origin.own and origin.rank is not None and label is not None:
            printed[label].add(origin.rank)
    return printed


def _numbers(labels: Collection[str]) -> dict[str, int]:
    """Return the place of each label in the order of the numbers in them, where these differ."""
    nodes = [label for label in labels if not label.startswith(_PROCESS)]
    parts = {node: (not _HEAD.search(node), *map(int, _NUMBER.findall(node))) for node in nodes}
    for size in range(2, min(map(len, parts.values()), default=0) + 1):
        order = sorted({some[:size] for some in parts.values()})
        if len(order) == len(nodes):
            places = {key: place for place, key in enumerate(order)}
            return {node: places[some[:size]] for node, some in parts.items()}
    return {}


def _contradicts(numbers: Mapping[str, int], printed: Ranks) -> bool:
    """Whether ranks are not numbered in the order of nodes, as what these print shows."""
    rows = sorted((number, printed[node]) for node, number in numbers.items() if printed.get(node))
    if _is_confirmed(numbers, printed):
        return False
    highest = -1
    for number, ranks in rows:
        if max(ranks) < highest or (number and ranks >= ROW):
            return True
        highest = max(highest, min(ranks))
    return False


def _is_confirmed(numbers: Mapping[str, int], printed: Ranks) -> bool:
    """Whether each node has one rank, that of its number."""
    agrees = any(number and printed.get(node) == {number} for node, number in numbers.items())
    return agrees and all(rank < len(numbers) for ranks in printed.values() for rank in ranks)


def _homes(printed: Ranks, numbers: Mapping[str, int]) -> dict[int, str]:
    """Return the label of each rank, where one is known to have it."""
    if _is_confirmed(numbers, printed):
        return {number: node for node, number in numbers.items()}
    labels: dict[int, list[str]] = defaultdict(list)
    for label, ranks in printed.items():
        for rank in ranks:
            if rank >= numbers.get(label, 0):
                labels[rank].append(label)
    alone = {
        label: sorted(rank for rank in ranks if labels[rank] == [label])
        for label, ranks in printed.items()
    }
    near = {rank: _nearest(rank, some, alone) for rank, some in labels.items()}
    return {rank: label for rank, label in near.items() if label is not None}


def _nearest(rank: int, labels: Sequence[str], alone: Mapping[str, Sequence[int]]) -> str | None:
    """Return the label whose ranks are next to a rank; one that has no other comes first."""
    away = {label: _distance(rank, alone[label]) for label in labels}
    least = min(away.values(), default=0)
    near = [label for label, distance in away.items() if distance == least]
    return near[0] if len(near) == 1 else None


def _distance(rank: int, ranks: Sequence[int]) -> int:
    """Return how far the next of some ascending ranks is, 0 where there are none."""
    at = bisect_left(ranks, rank)
    return min((abs(other - rank) for other in ranks[max(at - 1, 0) : at + 1]), default=0)


def _by_nccl(files: Sequence[FileLog]) -> Iterator[tuple[int, str]]:
    """Return each rank with its label, as NCCL tells in the communicator of all."""
    records = [r for one in files for r in one.records if "comm_rank" in r.fields]
    world = max((int(r.fields["nranks"][:MAX_DIGITS]) for r in records), default=0)
    for record in records:
        label = _label(record.origin)
        if label is not None and int(record.fields["nranks"][:MAX_DIGITS]) == world:
            yield int(record.fields["comm_rank"][:MAX_DIGITS]), label
