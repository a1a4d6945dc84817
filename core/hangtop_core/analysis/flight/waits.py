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
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from hangtop_core.analysis.flight.trace import P2P
from hangtop_core.analysis.flight.world import Entry, World, is_rooted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hangtop_core.analysis.flight.trace import Call


COMPARED = 8
"""The oldest operations of a group that are compared with what ranks have that are through with
it: a few numbers lie between the first and the last rank, unless something is odd."""


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
        self._in_flight: dict[int, list[tuple[int, Node]]] = defaultdict(list)
        _collectives(self)
        _sends(self)
        for found in self._in_flight.values():
            found.sort()
        self.edges: dict[Node, tuple[Node, ...]] = {}
        self._suspect()
        for operation in self.operations.values():
            self.edges[operation.node] = tuple(self._next(operation))
        for rank in world.ranks:
            self.edges[_rank(rank)] = tuple(node for _, node in self._in_flight.get(rank, ()))

    def in_flight(self, rank: int) -> list[Node]:
        """The operations a rank has in flight, the oldest first."""
        return [node for _, node in self._in_flight.get(rank, ())]

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
        if len(operation.classes) > 1:
            return
        if operation.missing:
            yield from map(_rank, operation.missing)
            return
        older = set()
        for rank, entry in operation.entries.items():
            for at, node in self._in_flight[rank]:
                other = self.operations[node]
                together = _same_block(other.entries[rank], entry)
                # A block ends as a whole: with those of its parts that lack their other end.
                if (at < entry.at and not together) or (together and _lacks(other)):
                    older.add(node)
                    break
        older.discard(operation.node)
        yield from sorted(older)
        if not older:
            yield from map(_rank, operation.absent or operation.perhaps)

    def _suspect(self) -> None:
        """Where all known members have joined but members are not recorded, others may lack."""
        idle = [rank for rank in self.world.traces if rank not in self._in_flight]
        for one in self.operations.values():
            if one.node.kind == "collective" and not one.missing and not self._whole(one):
                group = self.world.groups[one.node.group]
                one.open = True
                one.perhaps = tuple(rank for rank in idle if rank not in group.by_rank)

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

    def ends(self) -> list[End]:
        """All first causes of what is in flight, the one with most victims first."""
        component = _components(self.edges)
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
        back: dict[Node, list[Node]] = defaultdict(list)
        for node, following in self.edges.items():
            for other in following:
                back[other].append(node)
        found = []
        for nodes in members.values():
            if len(nodes) == 1 and nodes[0].kind == "rank" and not back[nodes[0]]:
                continue
            found.append(_end(tuple(sorted(nodes)), back))
        return sorted(found, key=lambda one: (-len(one.victims), one.nodes))


def _lacks(operation: Operation) -> bool:
    """Whether not all have joined it alike."""
    return bool(operation.missing or operation.absent or len(operation.classes) > 1)


def _rank(rank: int) -> Node:
    return Node("rank", source=rank, target=rank)


def _same_block(one: Entry, other: Entry) -> bool:
    """Whether two sends or recvs were issued together, so that neither waits for the other."""
    return bool(one.flag & other.flag & P2P) and (one.group, one.seq) == (other.group, other.seq)


def _end(nodes: tuple[Node, ...], back: dict[Node, list[Node]]) -> End:
    seen = dict.fromkeys(nodes, 0)
    edge = list(nodes)
    hops = 0
    while edge:
        following = []
        for node in edge:
            for other in back[node]:
                if other not in seen:
                    seen[other] = seen[node] + (other.kind != "rank")
                    following.append(other)
                    hops = max(hops, seen[other])
        edge = following
    inside = {node.source for node in nodes if node.kind == "rank"}
    victims = {node.source for node in seen if node.kind == "rank"} - inside
    return End(nodes, tuple(sorted(victims)), hops)


def _collectives(waits: Waits) -> None:
    world = waits.world
    for index, group in enumerate(world.groups):
        heads: dict[int, list[int]] = defaultdict(list)
        for rank, member in group.by_rank.items():
            if member.seq is not None:
                heads[member.seq].append(rank)
        for place, seq in enumerate(sorted(heads)):
            waits.add(_collective(world, index, seq, heads[seq], compare=place < COMPARED))


def _collective(
    world: World, index: int, seq: int, ranks: Iterable[int], compare: bool
) -> Operation:
    """One that is not over on some ranks; ``compare``: with what it was on the others, too."""
    group = world.groups[index]
    entries, passed, missing, unsure = {}, [], [], []
    for rank in ranks:
        at = group.by_rank[rank].waits_at
        assert at is not None  # noqa: S101 - a rank at the head of a group waits somewhere
        entries[rank] = world.entry(rank, at)
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


def rooted(call: Call) -> bool:
    """Whether one rank of a call is its root, so that it may be over on some before all join."""
    return is_rooted(call.op)


def classes(entries: dict[int, Entry]) -> tuple[tuple[Entry, tuple[int, ...]], ...]:
    """Entries that belong together, the most frequent kind first."""
    kinds: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for rank in sorted(entries):
        kinds[kind(entries[rank])].append(rank)
    ordered = sorted(kinds.values(), key=lambda ranks: (-len(ranks), ranks))
    return tuple((entries[ranks[0]], tuple(ranks)) for ranks in ordered)


def kind(entry: Entry) -> tuple[str, ...]:
    """What must be equal on all ranks that take part in one collective."""
    return kind_of(entry.call)


def kind_of(call: Call) -> tuple[str, ...]:
    """The same of a call.

    Sizes may differ where each rank has its own part: all_to_all, and the side of scatter and
    gather that only the root has.
    """
    op = call.op.lower().lstrip("_")
    if "coalesced" in op:
        return (op,)
    if "all_to_all" in op or "alltoall" in op:
        return (op, call.input_types)
    if op.startswith("scatter"):
        return (op, call.outputs, call.output_types)
    if op.startswith("gather"):
        return (op, call.inputs, call.input_types)
    return (op, call.inputs, call.outputs, call.input_types)


def _sends(waits: Waits) -> None:
    world = waits.world
    lanes: dict[Node, dict[int, list[Entry]]] = defaultdict(lambda: defaultdict(list))
    for rank, trace in world.traces.items():
        for at in trace.pending_sends():
            entry = world.entry(rank, at)
            how, peer = entry.call.kind, entry.call.peer
            members = world.groups[entry.group].members
            if how == "collective" or peer is None:
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


def _components(edges: dict[Node, tuple[Node, ...]]) -> dict[Node, int]:
    """Strongly connected components (Tarjan, without recursion), numbered."""
    index: dict[Node, int] = {}
    low: dict[Node, int] = {}
    component: dict[Node, int] = {}
    stack: list[Node] = []
    for start in edges:
        if start in index:
            continue
        work = [(start, iter(edges[start]))]
        index[start] = low[start] = len(index)
        stack.append(start)
        while work:
            node, following = work[-1]
            for other in following:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    work.append((other, iter(edges.get(other, ()))))
                    break
                if other not in component:
                    low[node] = min(low[node], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    number = len(component)
                    while node not in component:
                        component[stack.pop()] = number
    return component
