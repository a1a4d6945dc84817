"""Ranks that wait for one another in a circle: whose order was the odd one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.flight import patterns
from hangtop_core.analysis.flight.evidence import SHOWN, facts, name, named, verb, verdict
from hangtop_core.analysis.flight.waits import kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.analysis.flight.waits import End, Node, Operation, Waits
    from hangtop_core.analysis.flight.world import Entry
    from hangtop_core.diagnosis import Verdict


def circle(waits: Waits, end: End) -> Verdict:
    """The verdict on ranks of which each waits for the next."""
    operations = [waits.operations[node] for node in end.nodes if node.kind != "rank"]
    inside = {node.source for node in end.nodes if node.kind == "rank"}
    inside |= {rank for one in operations for rank in one.entries}
    sides = {one.node: sorted(set(one.entries) & inside) for one in operations}
    said = "; ".join(
        f"{name(sides[one.node])} {verb(sides[one.node], 'waits', 'wait')} in {named(one)} "
        f"{_for_whom(waits, one)}"
        for one in operations[:SHOWN]
    )
    if all(one.node.kind == "p2p" for one in operations):
        text = f"{name(inside)} wait for one another in a circle: {said}"
        return verdict(
            patterns.P2P_CIRCLE, text, sorted(inside), end.victims, facts(waits, operations)
        )
    blamed, left_out = _odd_one(waits, operations, sides)
    confidence = None
    pattern = patterns.INVERSION
    text = f"{name(inside)} wait for one another in a circle: {said}"
    found = facts(waits, operations)
    if blamed and left_out:
        pattern = patterns.SKIPPED
        text = f"{left_out}. {text[0].upper()}{text[1:]}"
    elif left_out:
        text += f". Perhaps {left_out}"
    elif blamed:
        text += f". {name(blamed).capitalize()} took another order than most"
        confidence = 0.85
    blamed = blamed or sorted(inside)
    victims = sorted((inside | set(end.victims)) - set(blamed))
    steps = list(pattern.next_steps)
    if pattern is patterns.INVERSION and any(
        "nccl" in one.entry.call.backend for one in operations
    ):
        steps.append("NCCL_LAUNCH_ORDER_IMPLICIT=1 (NCCL 2.26 or newer) if only the order differs")
    return verdict(pattern, text, blamed, victims, found, steps, confidence)


def _for_whom(waits: Waits, operation: Operation) -> str:
    if operation.missing:
        return f"for {name(operation.missing)}"
    behind = [waits.operations[node] for node in waits.edges[operation.node] if node.kind != "rank"]
    names = ", ".join(sorted({named(one) for one in behind})[:2])
    return f"which all have issued, behind {names}" if names else "which all have issued"


def _odd_one(
    waits: Waits, operations: Sequence[Operation], sides: dict[Node, list[int]]
) -> tuple[list[int], str | None]:
    """Who in a circle left the order of the others, and what it left out, where that can be told.

    A rank that went on without an operation of one group waits in another for those whom it keeps
    waiting; from outside this looks like groups in another order. A clear minority is what differs.
    What a rank did in earlier iterations then tells a step left out from another order.
    """
    collectives = [one for one in operations if one.node.kind == "collective"]
    odd = _minority(waits, collectives, sides)
    found = {
        rank: place
        for one in collectives
        for rank in one.missing
        if (not odd or rank in odd) and (place := _left_out(waits, rank, one)) is not None
    }
    places = set(found.values()) if found and set(found) == set(odd or found) else set()
    if len(places) != 1 or (not odd and len(found) > 1):
        return odd, None
    return odd, f"{name(found)} went on without {places.pop()}, going by what it did before"


def _minority(
    waits: Waits, operations: Sequence[Operation], sides: dict[Node, list[int]]
) -> list[int]:
    """The smaller side of a circle of two groups, of the ranks in both: they had a choice."""
    if len(operations) != 2:
        return []
    first, second = (set(waits.world.groups[one.node.group].members) for one in operations)
    both = [[rank for rank in sides[one.node] if rank in first & second] for one in operations]
    small, large = sorted(both, key=len)
    return small if 0 < len(small) < len(large) and not set(small) & set(large) else []


def _left_out(waits: Waits, rank: int, operation: Operation) -> str | None:
    """What a rank left out, if in earlier iterations it called that before what it waits in now."""
    world, group = waits.world, operation.node.group
    own = [waits.operations[node] for node in waits.in_flight(rank)]
    if not own:
        return None
    here = own[0].entries[rank]
    wanted = kind(operation.entry)
    # Walk back from the present wait: did the same call come after `wanted` the last time?
    trace = world.traces[rank]
    earlier = [
        at for at in range(here.at) if world.group_of(rank, trace.group[at]) in (group, here.group)
    ]
    last = next((at for at in reversed(earlier) if _alike(world.entry(rank, at), here)), None)
    if last is None:
        return None
    previous = next((at for at in reversed(earlier) if at < last), None)
    before = world.entry(rank, previous) if previous is not None else None
    if before is None or before.group != group or kind(before) != wanted:
        return None
    # The same was due before the present call, and is not there.
    since = [world.entry(rank, at) for at in earlier if at > last]
    if any(one.group == group and kind(one) == wanted for one in since):
        return None
    return named(operation)


def _alike(one: Entry, other: Entry) -> bool:
    return one.group == other.group and kind(one) == kind(other)
