"""Ranks that wait for one another in a circle: whose order was the odd one."""

from __future__ import annotations

from itertools import cycle, pairwise
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from hangtop_core.analysis.flight import patterns
from hangtop_core.analysis.flight.evidence import SHOWN, facts, name, named, verb, verdict
from hangtop_core.analysis.flight.waits import Operation, kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.analysis.flight.waits import End, Node, Waits
    from hangtop_core.analysis.flight.world import Entry
    from hangtop_core.diagnosis import Verdict

COMPARED = 64
"""Ranks of one circle whose calls are compared with those that they made before."""
RECENT = 512
"""Calls of each of them that are."""


class Skip(Struct, frozen=True):
    """Ranks that wait in something else than usual, while others wait for them."""

    ranks: tuple[int, ...]
    lacking: tuple[Operation, ...]
    """What is usually due before."""
    past: bool | None
    """Whether their call sites show that they went past it; None where these do not tell."""
    always: bool = False
    """Whether they did it before in each of several iterations."""
    usual: bool = True
    """Whether earlier iterations tell; else only that they are few, and wait in something else."""

    @property
    def what(self) -> str:
        """`all_reduce #7 on tp`."""
        return " and ".join(named(one) for one in self.lacking[:2])


def circle(waits: Waits, end: End) -> Verdict:
    """The verdict on ranks of which each waits for the next."""
    operations = [waits.operations[node] for node in end.nodes if node.kind != "rank"]
    inside = _inside(waits, end, operations)
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
    blamed = _minority(waits, [one for one in operations if one.node.kind == "collective"])
    skip = skipped(waits, end)
    confidence = None
    pattern = patterns.INVERSION
    text = f"{name(inside)} wait for one another in a circle: {said}"
    found = facts(waits, operations)
    if blamed and skip is not None and skip.past:
        pattern = patterns.SKIPPED
        text = skip_text(skip, text)
    elif blamed:
        confidence = 0.85
        text += f". {name(blamed).capitalize()} took another order than most"
        if skip is not None and skip.past is None:
            text += f", or went on without {skip.what}"
    elif skip is not None and skip.past and skip.always:
        pattern, blamed = patterns.SKIPPED, list(skip.ranks)
        text = skip_text(skip, text)
    elif skip is not None:
        text += f". Perhaps {_went_on(skip)}"
    blamed = blamed or sorted(inside)
    victims = sorted((inside | set(end.victims)) - set(blamed))
    steps = list(pattern.next_steps)
    if pattern is patterns.INVERSION and any(
        "nccl" in one.entry.call.backend for one in operations
    ):
        steps.append("NCCL_LAUNCH_ORDER_IMPLICIT=1 (NCCL 2.26 or newer) if only the order differs")
    return verdict(pattern, text, blamed, victims, found, steps, confidence)


def _inside(waits: Waits, end: End, operations: Sequence[Operation]) -> set[int]:
    """The ranks in a circle: those that are waited for in it, not those that wait alike with them.

    Where operations lead to older ones, those that have issued both.
    """
    found = {node.source for node in end.nodes if node.kind == "rank"}
    for one in operations:
        for node in set(waits.edges[one.node]).intersection(end.nodes):
            if node.kind != "rank":
                found |= set(one.entries) & set(waits.operations[node].entries)
    return found


def _for_whom(waits: Waits, operation: Operation) -> str:
    if operation.missing:
        return f"for {name(operation.missing)}"
    behind = [waits.operations[node] for node in waits.edges[operation.node] if node.kind != "rank"]
    names = ", ".join(sorted({named(one) for one in behind})[:2])
    return f"which all have issued, behind {names}" if names else "which all have issued"


def skipped(waits: Waits, end: End) -> Skip | None:
    """Who in a circle left the order that it kept before, and what it left out, or only put off.

    A rank that went on without an operation of one group waits in another for those whom it keeps
    waiting; from outside this looks like groups in another order. A clear minority is what differs;
    without one, it is who does not do what it did in earlier iterations.
    """
    operations = [waits.operations[node] for node in end.nodes if node.kind == "collective"]
    inside = {rank for one in operations for rank in one.entries}
    odd = _minority(waits, operations)
    if not odd and (gone := _departed(waits, operations)) and not _circular(operations, set(gone)):
        lack = [one for one in operations if set(gone) & set(one.missing)]
        return Skip(tuple(sorted(gone)), tuple(lack), True, always=True)
    few = 0 < len(odd) <= COMPARED
    found: dict[int, bool | None] = {}
    always = True
    lacking: dict[Node, Operation] = {}
    for one in operations:
        for rank in inside.intersection(one.missing, odd or inside):
            own = _left_out(waits, rank, one)
            if own is not None and not _as_usual(waits, rank):
                found[rank] = _went_past(*own)
                always = always and _kept(waits, rank, one, own)
                lacking[one.node] = one
            elif own is None and few and (_fewer(waits, rank, one) or _without(waits, rank, one)):
                found[rank] = None
                lacking[one.node] = one
    whole = set(found) == set(odd) if odd else set(found) < inside
    if not found or not whole or (not odd and _circular(operations, set(found))):
        return None
    ways = set(found.values())
    past = ways.pop() if len(ways) == 1 else None
    return Skip(tuple(sorted(found)), tuple(lacking.values()), past, always)


def _circular(operations: Sequence[Operation], without: set[int]) -> bool:
    """Whether some wait for one another in a circle also without these ranks: then these are only
    held up by it, whatever they have left out."""
    left = {
        one.node: (set(one.entries) - without, set(one.missing) - without) for one in operations
    }
    while left:
        there = set().union(*(entered for entered, _ in left.values()))
        on = {node: ranks for node, ranks in left.items() if ranks[1] & there}
        if len(on) == len(left):
            return True
        left = on
    return False


def alone(waits: Waits, end: End) -> Skip | None:
    """Who in a circle are few, and what others wait in for them, where earlier rounds tell nothing.

    None where they did before as they do now: then the others may have left something out.
    """
    operations = [waits.operations[node] for node in end.nodes if node.kind == "collective"]
    odd = set(_minority(waits, operations))
    lack = [one for one in operations if odd and odd <= set(one.missing)]
    if not lack or any(_as_usual(waits, rank) for rank in sorted(odd)[:COMPARED]):
        return None
    return Skip(tuple(sorted(odd)), tuple(lack), None, usual=False)


def skip_text(skip: Skip, circle_text: str) -> str:
    """`rank 2 went on without all_reduce #7 on tp, going by what it did before`, and the circle."""
    return f"{_went_on(skip)}. {circle_text[0].upper()}{circle_text[1:]}"


def _went_on(skip: Skip) -> str:
    before = verb(skip.ranks, "it", "they")
    said = f"{name(skip.ranks)} went on without {skip.what}"
    return f"{said}, going by what {before} did before" if skip.usual else said


def _minority(waits: Waits, operations: Sequence[Operation]) -> list[int]:
    """The smaller side of a circle of two groups, of the ranks in both: they had a choice."""
    if len(operations) != 2:
        return []
    first, second = (set(waits.world.groups[one.node.group].members) for one in operations)
    both = [[rank for rank in sorted(one.entries) if rank in first & second] for one in operations]
    small, large = sorted(both, key=len)
    return small if 0 < len(small) < len(large) and not set(small) & set(large) else []


def _left_out(waits: Waits, rank: int, operation: Operation) -> tuple[Entry, Entry, Entry] | None:
    """Whether in earlier iterations a rank called an operation before what it waits in now.

    If so: what it waits in, the same the last time, and the operation before that.
    """
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
    if any(_alike(one, before) for one in since):
        return None
    return here, world.entry(rank, last), before


def _without(waits: Waits, rank: int, operation: Operation) -> bool:
    """Whether a call as that which others wait for is one that a rank made in earlier rounds."""
    lack = _lacks(waits, rank)
    return lack is not None and (operation.node.group, operation.entry.call.op) in lack.calls


def _fewer(waits: Waits, rank: int, operation: Operation) -> bool:
    """Whether a rank called less of what others wait for than usual before what it waits in now.

    A round ends where it begins with calls as that one: alike calls may be several in a row.
    """
    world, group = waits.world, operation.node.group
    own = [waits.operations[node] for node in waits.in_flight(rank)]
    if not own:
        return False
    here, wanted, trace = own[0].entries[rank], kind(operation.entry), world.traces[rank]
    calls = [
        world.entry(rank, at)
        for at in range(max(here.at - RECENT, 0), here.at + 1)
        if world.group_of(rank, trace.group[at]) in (group, here.group)
    ]
    ends = [
        n
        for n, one in enumerate(calls)
        if n and calls[n - 1].group != here.group and _alike(one, here)
    ]
    counts = [
        sum(one.group == group and kind(one) == wanted for one in calls[first:last])
        for first, last in pairwise(ends)
    ]
    regular = len(set(counts[-3:-1])) == 1
    return bool(ends) and ends[-1] == len(calls) - 1 and regular and counts[-1] < counts[-2]


def _kept(waits: Waits, rank: int, left: Operation, own: tuple[Entry, Entry, Entry]) -> bool:
    """Whether what a rank waits in came after what it left out in all iterations, two at least."""
    world, (here, _, before) = waits.world, own
    trace, groups = waits.world.traces[rank], (left.node.group, here.group)
    calls = [
        world.entry(rank, at)
        for at in range(here.at)
        if world.group_of(rank, trace.group[at]) in groups
    ]
    ends = [n for n, one in enumerate(calls) if n and _alike(one, here)]
    return len(ends) > 1 and all(_alike(calls[n - 1], before) for n in ends)


def _departed(waits: Waits, operations: Sequence[Operation]) -> set[int]:
    """Ranks in a circle that left out, of what they did in earlier rounds, what others wait for.

    Empty where that is said of all of them, or where nothing came after it: then it may be put off.
    One earlier round is no habit, and where the last call of another rank in the circle comes as
    never before, that one is what differs.
    """
    found: set[int] = set()
    inside = sorted({rank for one in operations for rank in one.entries})
    for rank in inside if len(inside) <= COMPARED else ():
        lack = _lacks(waits, rank)
        wanted = {(one.node.group, one.entry.call.op) for one in operations if rank in one.missing}
        if lack is None:
            return set()
        if lack.rounds > 1 and wanted & lack.calls:
            found.add(rank)
    return found if len(found) < len(inside) else set()


class _Lack(NamedTuple):
    """What a rank has not called in this round."""

    calls: frozenset[tuple[int, str]] = frozenset()
    """Group and operation of each."""
    rounds: int = 0
    """Earlier ones in which it did, in the same order."""


def _lacks(waits: Waits, rank: int) -> _Lack | None:
    """The calls of earlier rounds that a rank did not make in this one before its last few calls.

    Of its history that part counts which ends in the same calls as now. Empty where it does as
    before, as far as its ring goes back; None where its last call alone is like one before.
    """
    calls, world = _latest(waits, rank), waits.world
    alike, at = 0, -1
    for end in range(len(calls) - 2, -1, -1):
        length, apart = 0, len(calls) - 1 - end  # a round is not compared with a part of itself
        while length <= min(end, apart - 1) and calls[end - length] == calls[-1 - length]:
            length += 1
        if length > alike:
            alike, at = length, end
    if alike == 0 or at < alike:
        return _Lack() if alike > 1 else None
    if alike == 1:
        return None
    here, first = calls[-1 - alike], at - alike + 1
    while first and calls[first - 1] != here:
        first -= 1
    if not first:
        return None
    left = calls[first : at - alike + 1]
    # Of what is repeated any repetition may be the one that is not there, also the last; and as
    # long as nothing else has come, the round is not over.
    again = zip(calls[-alike:], cycle(left), strict=False)
    after = next((n for n, (call, one) in enumerate(again) if call != one), alike)
    if alike - after <= 1:
        return None
    whole = calls[first : at + 1]
    rounds = sum(calls[n : n + len(whole)] == whole for n in range(first + 1))
    return _Lack(frozenset((world.group_of(rank, group), op) for group, op in left), rounds)


def _as_usual(waits: Waits, rank: int) -> bool:
    """Whether a rank came to where it waits by the calls of earlier rounds."""
    lack = _lacks(waits, rank)
    return lack is not None and not lack.calls


def _latest(waits: Waits, rank: int) -> list[tuple[int, str]]:
    """Group and operation of the last calls of a rank, up to the one that it waits in first."""
    trace, own = waits.world.traces[rank], waits.in_flight(rank)
    end = waits.operations[own[0]].entries[rank].at + 1 if own else 0
    return [
        (trace.group[at], trace.calls[trace.call[at]].op) for at in range(max(end - RECENT, 0), end)
    ]


def _alike(one: Entry, other: Entry) -> bool:
    """Whether it is the same call in another iteration: by the same way, where that is recorded."""
    known = bool(one.stack and other.stack)
    same = one.group == other.group and kind(one) == kind(other)
    return same and (one.stack == other.stack or not known)


def _went_past(here: Entry, last: Entry, before: Entry) -> bool | None:
    """Whether a rank came the same way as before, past the place of what it left out.

    One line for all groups, as in a loop over them, does not tell; nor do dumps without stacks.
    """
    if not (here.stack and last.stack and before.stack) or here.stack == last.stack == before.stack:
        return None
    return here.stack == last.stack
