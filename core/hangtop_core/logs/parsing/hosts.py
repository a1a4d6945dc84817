"""Ranks that are foreign to a node: its lines with torch's prefix of such a rank are quotations.

A pod, a container or a host that a launcher's label names may quote a rank of another node,
`[pod/worker-1/main] [rank0]: Traceback`. The evidence is NCCL's lines of each process, prefixes
that other nodes print as well, and the numbers in the names of nodes: a node has no ranks below its
own number, if ranks are numbered in the order of nodes.
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
"""Ranks that belong to a node that prints them all, whatever its name."""
_NUMBER = re.compile(r"(?<![A-Za-z0-9])[A-Za-z]*(\d{1,9})(?![A-Za-z0-9])")
_HEAD = re.compile(r"master|chief|head|leader|launcher")
"""The node of rank 0 for operators that number the other nodes separately, as PyTorchJob does."""
_PROCESS = "("
"""The beginning of a label of Ray, which names a process."""

Ranks = dict[str, set[int]]
"""By label."""


class Hosts:
    """The ranks that are foreign to each node."""

    def __init__(self, files: Sequence[FileLog]) -> None:
        origins = [stream.origin for file in files for stream in file.streams]
        labels = {label for origin in origins if (label := _label(origin)) is not None}
        printed = _printed(origins)
        numbers = _numbers(labels)
        self._numbers = {} if _contradicts(numbers, printed) else numbers
        self._home = _homes(printed, self._numbers) | dict(_by_nccl(files))
        counts = Counter(self._home.values())
        self._only = {label: rank for rank, label in self._home.items() if counts[label] == 1}

    def is_foreign(self, origin: Origin) -> bool:
        """Whether the rank in torch's own prefix is known to be on another node."""
        label = _label(origin)
        if label is None or origin.rank is None:
            return False
        below = origin.rank < self._numbers.get(label, 0)
        return below or self._home.get(origin.rank, label) != label

    def only(self, origin: Origin) -> int | None:
        """Return the rank of a node with exactly one known rank."""
        return self._only.get(_label(origin) or "")


def _label(origin: Origin) -> str | None:
    """Return the label of the node or of the process of an origin."""
    return origin.group if (origin.group or "").startswith(_PROCESS) else origin.node


def _printed(origins: Iterable[Origin]) -> Ranks:
    """Return the ranks in torch's own prefix behind every label."""
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
        order = sorted({key_parts[:size] for key_parts in parts.values()})
        if len(order) == len(nodes):
            places = {key: place for place, key in enumerate(order)}
            return {node: places[key_parts[:size]] for node, key_parts in parts.items()}
    return {}


def _contradicts(numbers: Mapping[str, int], printed: Ranks) -> bool:
    """Whether the printed ranks contradict a numbering in the order of nodes."""
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
    """Whether each node has exactly the rank of its number."""
    agrees = any(number and printed.get(node) == {number} for node, number in numbers.items())
    return agrees and all(rank < len(numbers) for ranks in printed.values() for rank in ranks)


def _homes(printed: Ranks, numbers: Mapping[str, int]) -> dict[int, str]:
    """Return the label of each rank, where it is known."""
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
    near = {rank: _nearest(rank, candidates, alone) for rank, candidates in labels.items()}
    return {rank: label for rank, label in near.items() if label is not None}


def _nearest(rank: int, labels: Sequence[str], alone: Mapping[str, Sequence[int]]) -> str | None:
    """Return the label with the nearest ranks; a label without other ranks comes first."""
    away = {label: _distance(rank, alone[label]) for label in labels}
    least = min(away.values(), default=0)
    near = [label for label, distance in away.items() if distance == least]
    return near[0] if len(near) == 1 else None


def _distance(rank: int, ranks: Sequence[int]) -> int:
    """Return the distance to the nearest of some ascending ranks, 0 without any."""
    at = bisect_left(ranks, rank)
    return min((abs(neighbour - rank) for neighbour in ranks[max(at - 1, 0) : at + 1]), default=0)


def _by_nccl(files: Sequence[FileLog]) -> Iterator[tuple[int, str]]:
    """Yield each rank with its label, by NCCL's lines on the communicator of all ranks."""
    records = [r for file in files for r in file.records if "comm_rank" in r.fields]
    world = max((int(r.fields["nranks"][:MAX_DIGITS]) for r in records), default=0)
    for record in records:
        label = _label(record.origin)
        if label is not None and int(record.fields["nranks"][:MAX_DIGITS]) == world:
            yield int(record.fields["comm_rank"][:MAX_DIGITS]), label
