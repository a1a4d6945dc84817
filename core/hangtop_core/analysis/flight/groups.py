"""Where every process group stands, the first to stall first, and what each waits on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from hangtop_core.analysis.flight.evidence import issued_ns
from hangtop_core.analysis.flight.waits import Operation
from hangtop_core.analysis.flight.world import has_sends

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hangtop_core.analysis.flight.waits import Node, Waits
    from hangtop_core.analysis.flight.world import Group, World

Stage = Literal[
    "missing",
    "mismatch",
    "send waits",
    "recv waits",
    "no data",
    "behind",
    "partly over",
    "not through",
    "done",
    "unused",
]
"""How a group gets on: ranks have not joined; they have issued different calls; a send or a recv
has no other end; ranks without a recorder may not have joined; all have joined, but a rank has
something older to do; over on some ranks only; all have joined and none is through; everything that
was issued is over; never used."""

SHOWN = 6
"""Steps of a chain of groups that are followed."""


class GroupLine(Struct, frozen=True):
    """One process group."""

    index: int
    """Its place in the world's groups."""
    key: str
    """The same in a later picture: its name and its first member."""
    label: str
    uid: str
    desc: str
    size: int
    sends: bool
    """Whether its ranks have sent to one another: those have no number that both ends share."""
    recorded: bool
    """Whether its members are recorded; else they are those seen using it."""
    stage: Stage
    newest: int | None
    """The highest number any member has issued; None when it is not known."""
    done: int | None
    """All members of which it is known are through with the numbers up to this one."""
    operation: Operation | None = None
    """What of it was issued first and is not over; None when nothing is under way."""
    under_way: int = 0
    """How many operations are not over at the head of a rank: more than one where ranks differ."""
    first: bool = False
    """Whether the hang begins here, as far as recorders tell."""
    behind: tuple[str, ...] = ()
    """Groups it waits on, the nearest first; the last one names a circle by an empty text."""
    since_ns: int = 0
    """When a rank issued that operation first, as `Trace.created` has it; 0 when unknown."""

    @property
    def stalled(self) -> bool:
        """Whether something of it is not over."""
        return self.operation is not None


def group_lines(world: World, waits: Waits) -> tuple[GroupLine, ...]:
    """All groups: where the hang begins, then by the time they stalled, then those at rest."""
    begins = beginnings(waits)
    operations = waits.by_group()
    lines = [
        _line(index, group, waits, operations.get(index, ()), begins)
        for index, group in enumerate(world.groups)
    ]
    return tuple(sorted(lines, key=_order))


def _order(line: GroupLine) -> tuple[object, ...]:
    unused = line.stage == "unused"
    return (not line.first, not line.stalled, line.since_ns or 1 << 63, unused, line.index)


def beginnings(waits: Waits) -> frozenset[Node]:
    """The operations at which the graph of waits ends: in a circle, not over, or lacking a rank
    that has nothing in flight itself."""
    found: set[Node] = set()
    ranks: set[int] = set()
    for end in waits.ends:
        for node in end.nodes:
            if node.kind != "rank":
                found.add(node)
            elif len(end.nodes) == 1:
                ranks.add(node.source)
    if ranks:
        for node, following in waits.edges.items():
            if node.kind != "rank" and any(
                one.kind == "rank" and one.source in ranks for one in following
            ):
                found.add(node)
    return frozenset(found)


def _line(
    index: int,
    group: Group,
    waits: Waits,
    operations: Sequence[Operation],
    begins: frozenset[Node],
) -> GroupLine:
    members = group.by_rank.values()
    sends = has_sends(waits.world, group)
    newest = max((m.newest for m in members if m.newest is not None), default=None)
    done = min((m.done for m in members if m.newest is not None), default=None)
    first = min(
        operations,
        key=lambda one: (one.node not in begins, issued_ns(one) or 1 << 63, one.node),
        default=None,
    )
    return GroupLine(
        index=index,
        key=f"{group.uid}:{group.members[0] if group.members else ''}",
        label=group.label,
        uid=group.uid,
        desc=group.desc,
        size=len(group.members),
        sends=sends,
        recorded=group.configured,
        stage=stage(waits, first) if first is not None else "done" if newest or sends else "unused",
        newest=newest,
        done=done,
        operation=first,
        under_way=len(operations),
        first=first is not None and first.node in begins,
        behind=behind(waits, first.node) if first is not None else (),
        since_ns=issued_ns(first) if first is not None else 0,
    )


def stage(waits: Waits, one: Operation) -> Stage:
    """How one operation gets on."""
    if len(one.classes) > 1:
        return "mismatch"
    if one.node.kind == "p2p" and one.missing:
        return "send waits" if one.node.source in one.entries else "recv waits"
    if one.missing:
        return "missing"
    following = waits.edges.get(one.node, ())
    if any(node.kind != "rank" for node in following):
        return "behind"
    if one.absent or one.unsure or one.perhaps:
        return "no data"
    return "partly over" if one.passed else "not through"


def behind(waits: Waits, node: Node) -> tuple[str, ...]:
    """Labels of the groups that an operation waits on, step by step, the oldest of each step."""
    labels: list[str] = []
    seen = {node}
    while len(labels) < SHOWN:
        following = list(_next(waits, node))
        new = [one for one in following if one not in seen]
        if not new:
            return (*labels, "") if following else tuple(labels)
        node = min(new, key=lambda one: (issued_ns(waits.operations[one]) or 1 << 63, one))
        seen.add(node)
        label = waits.operations[node].label
        if not labels or labels[-1] != label:
            labels.append(label)
    return tuple(labels)


def _next(waits: Waits, node: Node) -> Iterable[Node]:
    """Operations that have to end before this one can."""
    for one in waits.edges.get(node, ()):
        if one.kind != "rank":
            yield one
        elif (oldest := waits.oldest(one.source)) is not None:
            yield oldest
