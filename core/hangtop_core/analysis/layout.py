"""Which node a missing rank should be on, from how the ranks that are there are laid out.

Launchers number ranks node by node, so a rank's place follows from the local world size
(LOCAL_WORLD_SIZE of torchrun and accelerate, LOCAL_SIZE of deepspeed, Open MPI's
OMPI_COMM_WORLD_LOCAL_SIZE) as soon as all nodes have the same. Which machine has a node rank is
told by Slurm's list of nodes or by the order in which the nodes were named, but only where the
ranks that are there agree with it; else by there being only one node without ranks, also where
nodes have different numbers of them. Nodes that were named need not be those of the job, so what
rests on their names alone is marked.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from hangtop_core.jobs.joining import master
from hangtop_core.model.node.places import Places
from hangtop_core.model.node.states import OBSERVED
from hangtop_core.text.addresses import is_loopback
from hangtop_core.text.clean import clean
from hangtop_core.text.launchers import LOCAL_SIZES, NODE_RANKS, number_in
from hangtop_core.text.rank_sets import is_key, names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hangtop_core.model.snapshot import Job, Rank, Snapshot

MAX_MISSING = 8192
"""Missing ranks that are looked for; a job lacks that many only when nothing was observed."""
MAX_WORLD = 1_000_000
"""A world size above this is no size: it is what some process says of itself."""

_NAMED = 2
"""Nodes that have to agree before an order of names is believed."""


class Seat(Struct, frozen=True):
    """Where one missing rank should be."""

    rank: int
    node: str | None = None
    """None: not known."""
    local: int | None = None
    """Its rank on that node."""
    group: int | None = None
    """The node rank."""
    among: tuple[str, ...] = ()
    """Nodes one of which it must be, where it is not known which."""
    beside: bool = False
    """Whether ranks of the same launcher are there."""
    named: bool = False
    """Whether its node is only told by taking the nodes that were named for those of the job."""
    unseen: str | None = None
    """Why its node was not observed; None where it was, or is not known."""


class _Block(NamedTuple):
    """Ranks of one launcher on one node: ``first`` to ``first + size - 1``."""

    node: str
    first: int
    size: int


class _Unseen:
    """Why nodes were not observed."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._nodes = {node.name: node for node in snapshot.nodes}

    def why(self, name: str | None) -> str | None:
        """Of one node; None where it was, or is not known."""
        if name is None:
            return None
        node = self._nodes.get(name)
        if node is None:
            return "it is not among the nodes that were named"
        if node.state in OBSERVED:
            return None
        return f"{node.state}: {clean(node.cause or 'no answer yet')}"


def node_rank(rank: Rank) -> int | None:
    """Return the number of a rank's node, as its launcher told it."""
    return number_in(rank.process.env, NODE_RANKS)


def absent(job: Job, most: int = MAX_WORLD) -> tuple[int, ...]:
    """Return the ranks of a job's world of which nothing was seen, the first ``most`` of them.

    None of a world made up, and none where a rank has no number: it may be any of them.
    """
    if job.world_size is None or job.world_size > MAX_WORLD:
        return ()
    here = {rank.rank for rank in job.ranks}
    if is_key(min(here, default=0)):
        return ()
    return tuple(islice((one for one in range(job.world_size) if one not in here), most))


def missing(job: Job) -> tuple[int, ...]:
    """Return the first ranks that a job with ranks lacks, as many as are looked for."""
    return absent(job, MAX_MISSING) if job.ranks else ()


def seats(snapshot: Snapshot, job: Job) -> tuple[Seat, ...]:
    """Return where each missing rank of a job should be, ascending by rank."""
    lacking = missing(job)
    if not lacking:
        return ()
    blocks = _blocks(job)
    inside: dict[int, _Block] = {}
    for block in blocks:
        for one in range(block.first, block.first + min(block.size, 1024)):
            inside.setdefault(one, block)
    size = _even(job, blocks)
    told, guessed = _names(snapshot, job, blocks, size) if size else ({}, {})
    launchers = {launcher.node for launcher in job.launchers}
    free = _free(snapshot, job)
    unseen, only = _Unseen(snapshot), None if size else _only(job, lacking, free)
    found = []
    for one in lacking:
        if one in inside:
            block = inside[one]
            why = unseen.why(block.node)
            seat = Seat(one, block.node, one - block.first, beside=True, unseen=why)
        elif size:
            group = one // size
            node = told.get(group) or guessed.get(group)
            named = group not in told and node not in launchers
            why, among = unseen.why(node), () if node else free
            seat = Seat(one, node, one % size, group, among, named=named, unseen=why)
        else:
            among, why = () if only else free, unseen.why(only)
            seat = Seat(one, only, among=among, named=only is not None, unseen=why)
        found.append(seat)
    return tuple(found)


def _free(snapshot: Snapshot, job: Job) -> tuple[str, ...]:
    """Nodes without ranks of the job."""
    taken = {rank.node for rank in job.ranks}
    return tuple(node.name for node in snapshot.nodes if node.name not in taken)


def _only(job: Job, lacking: Sequence[int], free: Sequence[str]) -> str | None:
    """The only node without ranks, where those that lack may be its own; None where not.

    Who is between the ranks of a node was beside them, and a node has not many more than others.
    Ranks that meet at a loopback address are all of one node.
    """
    told = master(job.ranks[0].process)
    if len(free) != 1 or (told is not None and is_loopback(told[0])):
        return None
    on: dict[str, list[int]] = defaultdict(list)
    for rank in job.ranks:
        on[rank.node].append(rank.rank)
    between = any(min(some) < one < max(some) for some in on.values() for one in lacking[:8])
    many = len(lacking) > 2 * max(map(len, on.values()))
    return None if between or many else free[0]


def _blocks(job: Job) -> tuple[_Block, ...]:
    found: dict[_Block, None] = {}
    for rank in job.ranks:
        size, local = number_in(rank.process.env, LOCAL_SIZES), rank.local_rank
        if size and local is not None and local < size and local <= rank.rank:
            found[_Block(rank.node, rank.rank - local, size)] = None
    return tuple(found)


def _even(job: Job, blocks: Sequence[_Block]) -> int | None:
    """Return how many ranks every node has, where that is the same for all of them."""
    if not blocks:
        blocks = _counted(job)
    sizes = {block.size for block in blocks}
    if len(sizes) != 1 or any(block.first % block.size for block in blocks):
        return None
    (size,) = sizes
    for rank in job.ranks:
        group = node_rank(rank)
        if group is not None and group != rank.rank // size:
            return None
    return size if job.world_size and job.world_size % size == 0 else None


def _counted(job: Job) -> tuple[_Block, ...]:
    """Without a word of the launchers: blocks of ranks without a gap, on two nodes at least."""
    on: dict[str, set[int]] = defaultdict(set)
    for rank in job.ranks:
        on[rank.node].add(rank.rank)
    whole = all(max(some) - min(some) + 1 == len(some) for some in on.values())
    if len(on) < _NAMED or not whole:
        return ()
    return tuple(_Block(node, min(some), len(some)) for node, some in on.items())


def _names(
    snapshot: Snapshot, job: Job, blocks: Sequence[_Block], size: int
) -> tuple[Mapping[int, str], Mapping[int, str]]:
    """Return the names of nodes by node rank: those that are told, and those that only fit."""
    count = (job.world_size or 0) // size
    known = {block.first // size: block.node for block in blocks or _counted(job)}
    if len(set(known.values())) != len(known):
        return {}, {}
    places = Places(snapshot.nodes)
    hosts = tuple(places.node_of(host, host) or host for host in job.hosts)
    if _fits(hosts, count, known):
        return dict(enumerate(hosts)), {}
    named = tuple(node.name for node in snapshot.nodes)
    if len(known) >= _NAMED and _fits(named, count, known):
        return known, dict(enumerate(named))
    free = _free(snapshot, job)
    lacking = [group for group in range(count) if group not in known]
    return known, {lacking[0]: free[0]} if len(free) == len(lacking) == 1 else {}


def _fits(order: Sequence[str], count: int, known: Mapping[int, str]) -> bool:
    return len(order) == count and all(order[group] == node for group, node in known.items())


def place_text(some: Sequence[Seat]) -> str:
    """`rank 5 (local rank 1 of node-3)`, `ranks 4-5 (node-3)`: missing ranks of one place."""
    first = some[0]
    ranks = names(seat.rank for seat in some)
    if first.node is not None:
        single = len(some) == 1 and first.local is not None
        local = f"local rank {first.local} of " if single else ""
        return f"{ranks} ({local}{clean(first.node)})"
    if first.among and len(first.among) < 4:
        return f"{ranks} (on {clean(' or '.join(first.among))})"
    return f"{ranks} (on which node is not known)"


def by_node(some: Iterable[Seat]) -> tuple[tuple[Seat, ...], ...]:
    """Missing ranks by the node they should be on; those of unknown nodes come last."""
    groups: dict[object, list[Seat]] = defaultdict(list)
    for seat in some:
        # Those that may be on the same nodes share the tuple of them, which is long.
        groups[seat.node if seat.node is not None else id(seat.among)].append(seat)
    ordered = sorted(groups.values(), key=lambda one: (one[0].node is None, one[0].rank))
    return tuple(tuple(one) for one in ordered)
