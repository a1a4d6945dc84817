"""Who of a process group has joined one of its operations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

if TYPE_CHECKING:
    from hangtop_core.analysis.flight.waits import Operation
    from hangtop_core.analysis.flight.world import World

Attendance = Literal["joined", "over", "not", "differs", "unsure", "absent", "unreadable"]
"""Has issued it; is through with it; has not issued it; has issued something else as this number;
its recorder does not tell; has no recorder; has one that could not be read."""

ORDER: dict[Attendance, int] = {
    "not": 0, "differs": 1, "absent": 2, "unreadable": 3, "unsure": 4, "joined": 5, "over": 6,
}  # fmt: skip
"""Those that others wait for first."""


class Attendee(Struct, frozen=True, gc=False):
    """One member of the group."""

    rank: int
    how: Attendance
    newest: int | None
    """The last number it has issued in this group; 0: none yet; None: not known."""


def attendees(
    world: World, index: int, seq: int | None, operation: Operation | None
) -> tuple[Attendee, ...]:
    """All members of a group, in its order; of a send or recv its two ends.

    Args:
        world: the traces.
        index: of the group.
        seq: the collective's number; None for a send.
        operation: what waits in it, where something does.
    """
    group = world.groups[index]
    differ = frozenset(operation.mismatched if operation is not None else ())
    if seq is None:
        if operation is None:
            return ()
        ends = (operation.node.source, operation.node.target)
        return tuple(Attendee(rank, _end(world, operation, rank), None) for rank in ends)
    found = []
    for rank in group.members:
        member = group.by_rank.get(rank)
        newest = member.newest if member is not None else None
        if member is None:
            how: Attendance = "unsure" if rank in world.traces else _without_trace(world, rank)
        elif newest is None or (newest < seq and world.lacks_entries(rank)):
            how = "unsure"
        elif newest < seq:
            how = "not"
        elif rank in differ:
            how = "differs"
        else:
            how = "over" if member.done >= seq else "joined"
        found.append(Attendee(rank, how, newest))
    # Where members are not recorded, those that have not used the group may belong to it.
    perhaps = operation.perhaps if operation is not None else ()
    return (*found, *(Attendee(rank, "unsure", None) for rank in perhaps))


def _without_trace(world: World, rank: int) -> Attendance:
    return "unreadable" if world.is_unreadable(rank) else "absent"


def _end(world: World, operation: Operation, rank: int) -> Attendance:
    if rank in operation.absent:
        return _without_trace(world, rank)
    return "not" if rank in operation.missing else "joined"
