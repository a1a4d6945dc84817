"""Who waits for whom: a graph of operations and ranks, and its ends, which are the first causes.

An operation that is not over points at the ranks that have not joined it. Where all have joined,
it points at operations that are older on one of its ranks, since a device runs what it was given
in order. A rank points at the operations it has in flight. What lies at an end of this graph waits
for nothing: there the hang begins, and all that lead there are its victims. An end can be a rank
(it has nothing in flight), an operation (all joined, or they disagree), or a circle.

Per rank only the oldest operation in flight of each group and peer counts: those behind it cannot
be over before it, however many a rank has enqueued.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from hangtop_core.analysis.flight.alike import Outlines, kind, rooted
from hangtop_core.analysis.flight.graph import Backwards, components
from hangtop_core.analysis.flight.world import MAX_MEMBERS, Entry, World
from hangtop_core.model.recorder.trace import P2P

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


COMPARED = 8
"""The oldest operations of a group that are compared with what ranks have that are through with
it: a few numbers lie between the first and the last rank, unless something is odd."""
MAX_HEADS = 64
"""Numbers of a group at which ranks wait that are looked at one by one. A later one waits for the
last of these: on every rank the numbers of a group end in order."""


class Node(NamedTuple):
    """A vertex: a rank, a collective of a group, or what one rank sends another in a group."""

    kind: str
    """`rank`, `collective` or `p2p`"""
    group: int = -1
    seq: int = -1
    """Of a collective."""
    source: int = -1
    """Of a p2p: who sends. Of a rank: itself."""
    target: int = -1


_Queued = tuple[int, Node]
"""Position in its trace of an operation that a rank has in flight."""
Classes = tuple[tuple[Entry, tuple[int, ...]], ...]
"""One entry of each kind of call that was issued, with its ranks; the most frequent first."""


def minority(classes: Classes) -> tuple[int, ...]:
    """Ranks that issued something else than most."""
    return tuple(sorted(rank for _, ranks in classes[1:] for rank in ranks))


class Operation(Struct):
    """One operation that is not over somewhere."""

    node: Node
    label: str
    """Its group, for people."""
    entries: dict[int, Entry]
    """Its entry on each rank where it is not over."""
    passed: tuple[int, ...] = ()
    """Members on which it is over already."""
    missing: tuple[int, ...] = ()
    """Members that have not issued it."""
    absent: tuple[int, ...] = ()
    """Members without a trace."""
    unsure: tuple[int, ...] = ()
    """Members of which it is not known whether they have issued it."""
    perhaps: tuple[int, ...] = ()
    """Ranks with nothing in flight that may be members, where members are not recorded."""
    open: bool = False
    """Whether ranks that were not seen using the group may be members, too."""
    classes: Classes = ()
    depth: int = 0
    """The most operations that any rank has in flight in this group, from this one on."""
    after: Node | None = None
    """Of one of very many numbers at which ranks of a group wait: an earlier one, which tells whom
    all these wait for."""

    @property
    def entry(self) -> Entry:
        """What most ranks issued."""
        return self.classes[0][0]

    @property
    def mismatched(self) -> tuple[int, ...]:
        """Ranks that issued something else than most."""
        return minority(self.classes)


class End(Struct, frozen=True):
    """A first cause: a vertex, or a circle of them, from which nothing leads on."""

    nodes: tuple[Node, ...]
    victims: tuple[int, ...]
    """Ranks from which it can be reached, but for those in it."""
    hops: int
    """The longest shortest way of a victim to it, counted in operations."""


class Waits:
    """The graph."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.operations: dict[Node, Operation] = {}
        self._in_flight: dict[int, list[_Queued]] = defaultdict(list)
        self._blocks: dict[int, tuple[_Queued | None, _Queued | None]] = {}
        _collectives(self)
        _sends(self)
        for found in self._in_flight.values():
            found.sort()
        self.edges: dict[Node, tuple[Node, ...]] = {}
        self._nodes = {rank: Node("rank", source=rank, target=rank) for rank in world.ranks}
        self._suspect()
        for operation in self.operations.values():
            self.edges[operation.node] = tuple(self._next(operation))
        for rank, vertex in self._nodes.items():
            self.edges[vertex] = tuple(node for _, node in self._in_flight.get(rank, ()))
        self.outlines = Outlines()

    def in_flight(self, rank: int) -> list[Node]:
        """The operations a rank has in flight, the oldest first."""
        return [node for _, node in self._in_flight.get(rank, ())]

    def oldest(self, rank: int) -> Node | None:
        """The first operation that a rank has in flight."""
        queue = self._in_flight.get(rank)
        return queue[0][1] if queue else None

    @cached_property
    def oldest_numbers(self) -> dict[int, int]:
        """The lowest number in flight of each group, by the place of the group."""
        numbers: dict[int, int] = {}
        for node in self.operations:
            if node.kind == "collective":
                numbers[node.group] = min(numbers.get(node.group, node.seq), node.seq)
        return numbers

    @cached_property
    def lacking(self) -> dict[int, list[Operation]]:
        """The operations that each rank has not issued while others wait in them."""
        lacking: dict[int, list[Operation]] = defaultdict(list)
        for operation in self.operations.values():
            for rank in operation.missing:
                lacking[rank].append(operation)
        return lacking

    def by_group(self) -> dict[int, list[Operation]]:
        """The operations of each group that has any, by the place of the group."""
        found: dict[int, list[Operation]] = defaultdict(list)
        for one in self.operations.values():
            found[one.node.group].append(one)
        return found

    def add(self, operation: Operation) -> None:
        """Take in an operation; its ranks have it in flight."""
        self.operations[operation.node] = operation
        for rank, entry in operation.entries.items():
            self._in_flight[rank].append((entry.at, operation.node))

    def _next(self, operation: Operation) -> Iterator[Node]:
        if operation.after is not None:
            yield operation.after
            return
        if len(operation.classes) > 1:
            return
        if operation.missing:
            yield from map(self._rank, operation.missing)
            return
        before = {self._older(rank, entry) for rank, entry in operation.entries.items()}
        older = before - {None, operation.node}
        yield from sorted(node for node in older if node is not None)
        if not older:
            yield from map(self._rank, operation.absent or operation.perhaps)

    def _rank(self, rank: int) -> Node:
        return self._nodes.setdefault(rank, Node("rank", source=rank, target=rank))

    def _older(self, rank: int, entry: Entry) -> Node | None:
        """What a rank has to be through with before an entry: the first in its queue, mostly."""
        at, node = self._in_flight[rank][0]
        if not _same_block(self.operations[node].entries[rank], entry):
            return node if at < entry.at else None
        # A block ends as a whole: with those of its parts that lack their other end.
        lacks, other = self._leading(rank)
        before = [one for one in (lacks, other) if one and (one is lacks or one[0] < entry.at)]
        return min(before)[1] if before else None

    def _leading(self, rank: int) -> tuple[_Queued | None, _Queued | None]:
        """Of the block that a rank's queue begins with the first that lacks; the first after it."""
        if rank not in self._blocks:
            queue = self._in_flight[rank]
            first = self.operations[queue[0][1]].entries[rank]
            lacks = other = None
            for queued in queue:
                operation = self.operations[queued[1]]
                if not _same_block(operation.entries[rank], first):
                    other = other or queued
                elif _lacks(operation):
                    lacks = lacks or queued
            self._blocks[rank] = lacks, other
        return self._blocks[rank]

    def _suspect(self) -> None:
        """Where all known members have joined but members are not recorded, others may lack."""
        idle = [rank for rank in self.world.traces if rank not in self._in_flight]
        room = MAX_MEMBERS
        for one in self.operations.values():
            joined = not one.missing and one.after is None
            if one.node.kind == "collective" and joined and not self._whole(one):
                group = self.world.groups[one.node.group]
                one.open = True
                if room > 0:
                    one.perhaps = tuple(rank for rank in idle if rank not in group.by_rank)
                    room -= len(idle)

    def _whole(self, operation: Operation) -> bool:
        """Whether all members of its group are known: recorded, or by what they are through with.

        What is over was joined by all; but for what has a root, which is over on some before that.
        """
        index, seq = operation.node.group, operation.node.seq
        group = self.world.groups[index]
        if group.configured or len(group.members) == len(self.world.ranks):
            return True
        before = self.world.find(next(iter(operation.entries)), index, seq - 1)
        return before is not None and not rooted(before.call)

    @cached_property
    def ends(self) -> tuple[End, ...]:
        """All first causes of what is in flight, the one with most victims first."""
        component = components(self.edges)
        leads_on = {
            component[node]
            for node, following in self.edges.items()
            for other in following
            if component[other] != component[node]
        }
        members: dict[int, list[Node]] = defaultdict(list)
        for node, number in component.items():
            if number not in leads_on:
                members[number].append(node)
        back = Backwards(self.edges)
        ends = [
            End(tuple(sorted(nodes)), *back.reach(nodes))
            for nodes in members.values()
            if len(nodes) > 1 or nodes[0].kind != "rank" or back.is_awaited(nodes[0])
        ]
        return tuple(sorted(ends, key=lambda one: (-len(one.victims), one.nodes)))


def all_victims(ends: Iterable[End]) -> set[int]:
    """Victims of any of some ends, of which many have the same."""
    return set().union(*{id(end.victims): end.victims for end in ends}.values())


def _lacks(operation: Operation) -> bool:
    """Whether not all have joined it alike."""
    return bool(operation.missing or operation.absent or len(operation.classes) > 1)


def _same_block(one: Entry, other: Entry) -> bool:
    """Whether two sends or recvs were issued together, so that neither waits for the other."""
    return bool(one.flag & other.flag & P2P) and (one.group, one.seq) == (other.group, other.seq)


def _collectives(waits: Waits) -> None:
    world = waits.world
    for index, group in enumerate(world.groups):
        heads: dict[int, list[int]] = defaultdict(list)
        for rank, member in group.by_rank.items():
            if member.seq is not None:
                heads[member.seq].append(rank)
        numbers = sorted(heads)
        for place, seq in enumerate(numbers[:MAX_HEADS]):
            waits.add(_collective(world, index, seq, heads[seq], compare=place < COMPARED))
        for seq in numbers[MAX_HEADS:]:
            waits.add(_late(world, index, seq, heads[seq], numbers[MAX_HEADS - 1]))


def _collective(
    world: World, index: int, seq: int, ranks: Iterable[int], compare: bool
) -> Operation:
    """One that is not over on some ranks; ``compare``: with what it was on the others, too."""
    group, entries = world.groups[index], _heads(world, index, ranks)
    passed, missing, unsure = [], [], []
    others = {}
    for rank in group.members:
        member = group.by_rank.get(rank)
        if member is None or rank in entries:
            continue
        if member.newest is None or (member.newest < seq and world.lacks_entries(rank)):
            unsure.append(rank)
        elif member.newest < seq:
            missing.append(rank)
        else:
            if member.done >= seq:
                passed.append(rank)
            other = world.find(rank, index, seq) if compare else None
            if other is not None:
                others[rank] = other
    return Operation(
        node=Node("collective", index, seq),
        label=group.label,
        entries=entries,
        passed=tuple(passed),
        missing=tuple(missing),
        absent=tuple(rank for rank in group.members if rank not in world.traces),
        unsure=tuple(unsure),
        classes=classes({**entries, **others}),
        depth=max(group.by_rank[rank].pending for rank in entries),
    )


def _late(world: World, index: int, seq: int, ranks: Iterable[int], before: int) -> Operation:
    """One of very many numbers at which ranks wait; it cannot be over before an earlier one."""
    group, entries = world.groups[index], _heads(world, index, ranks)
    return Operation(
        node=Node("collective", index, seq),
        label=group.label,
        entries=entries,
        classes=classes(entries),
        depth=max(group.by_rank[rank].pending for rank in entries),
        after=Node("collective", index, before),
    )


def _heads(world: World, index: int, ranks: Iterable[int]) -> dict[int, Entry]:
    """The oldest entry that is not over of ranks in a group."""
    entries = {}
    for rank in ranks:
        at = world.groups[index].by_rank[rank].waits_at
        assert at is not None  # noqa: S101 - a rank at the head of a group waits somewhere
        entries[rank] = world.entry(rank, at)
    return entries


def classes(entries: dict[int, Entry]) -> tuple[tuple[Entry, tuple[int, ...]], ...]:
    """Entries that belong together, the most frequent kind first."""
    kinds: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for rank in sorted(entries):
        kinds[kind(entries[rank])].append(rank)
    ordered = sorted(kinds.values(), key=lambda ranks: (-len(ranks), ranks))
    return tuple((entries[ranks[0]], tuple(ranks)) for ranks in ordered)


def _sends(waits: Waits) -> None:
    world = waits.world
    lanes: dict[Node, dict[int, list[Entry]]] = defaultdict(lambda: defaultdict(list))
    for rank, trace in world.traces.items():
        for at in trace.pending_sends():
            entry = world.entry(rank, at)
            how, peer = entry.call.kind, entry.call.peer
            members = world.groups[entry.group].members
            if how == "collective" or peer is None or world.is_nameless:
                continue
            other = members[peer] if peer < len(members) else peer
            pair = (rank, other) if how == "send" else (other, rank)
            lanes[Node("p2p", entry.group, -1, *pair)][rank].append(entry)
    for node, sides in lanes.items():
        waits.add(_send(world, node, sides))


def _send(world: World, node: Node, sides: dict[int, list[Entry]]) -> Operation:
    """The oldest that one rank sends another: a side with nothing in flight has not joined it.

    Sends and recvs of a pair match in order, and what is over was matched; so what is in flight
    on both sides matches from the oldest on. What one side has more of comes after that, and
    cannot be over before it.
    """
    counts = {rank: len(sides.get(rank, ())) for rank in (node.source, node.target)}
    absent = tuple(rank for rank in counts if rank not in world.traces)
    missing = tuple(rank for rank in counts if rank not in absent and not counts[rank])
    entries = {rank: found[0] for rank, found in sides.items()}
    groups = [(entry, (rank,)) for rank, entry in sorted(entries.items())]
    same = (
        len({(one.call.inputs or one.call.outputs, one.call.input_types) for one, _ in groups}) < 2
    )
    merged = ((groups[0][0], tuple(entries)),) if same else tuple(groups)
    return Operation(
        node=node,
        label=world.groups[node.group].label,
        entries=entries,
        missing=missing,
        absent=absent,
        classes=merged,
        depth=max(counts.values()),
    )
