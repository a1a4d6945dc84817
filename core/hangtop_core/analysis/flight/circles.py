"""Ranks that wait for one another in a circle: whose order was the odd one."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from msgspec import Struct

from hangtop_core.analysis.flight import patterns
from hangtop_core.analysis.flight.evidence import SHOWN, facts, name, named, verb, verdict
from hangtop_core.analysis.flight.past import Pasts
from hangtop_core.analysis.flight.waits import Operation
from hangtop_core.text.commands import Advice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.analysis.flight.waits import End, Node, Waits
    from hangtop_core.analysis.flight.world import Entry
    from hangtop_core.diagnosis import Verdict
    from hangtop_core.text.commands import Step

_LAUNCH_ORDER = Advice(
    "NCCL_LAUNCH_ORDER_IMPLICIT=1 (NCCL 2.26 or newer) if only the order differs"
)
COMPARED = 64
"""Ranks of one circle whose calls are compared with those that they made before."""


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
    steps: list[Step] = list(pattern.next_steps)
    if pattern is patterns.INVERSION and any(
        "nccl" in one.entry.call.backend for one in operations
    ):
        steps.append(_LAUNCH_ORDER)
    return verdict(pattern, text, blamed, victims, found, steps, confidence)


def _inside(waits: Waits, end: End, operations: Sequence[Operation]) -> set[int]:
    """The ranks in a circle: those that are waited for in it, not those that wait alike with them.

    Where operations lead to older ones, those that have issued both.
    """
    found = {node.source for node in end.nodes if node.kind == "rank"}
    inside = set(end.nodes)
    for one in operations:
        for node in waits.edges[one.node]:
            if node.kind != "rank" and node in inside:
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
    odd, pasts = set(_minority(waits, operations)), Pasts(waits)
    if not odd and (gone := _departed(pasts, operations)) and not _circular(operations, set(gone)):
        lack = [one for one in operations if set(gone) & set(one.missing)]
        return Skip(tuple(sorted(gone)), tuple(lack), True, always=True)
    few = 0 < len(odd) <= COMPARED
    found: dict[int, bool | None] = {}
    always = True
    lacking: dict[Node, Operation] = {}
    for one in operations:
        for rank in (odd or inside).intersection(one.missing):
            past = pasts.of(rank)
            own = past.left_out(one)
            if own is not None and not past.is_as_usual:
                found[rank] = _went_past(*own)
                always = always and past.kept(one, own)
                lacking[one.node] = one
            elif own is None and few and (past.has_fewer(one) or past.is_without(one)):
                found[rank] = None
                lacking[one.node] = one
    whole = set(found) == odd if odd else set(found) < inside
    if not found or not whole or (not odd and _circular(operations, set(found))):
        return None
    ways = set(found.values())
    way = ways.pop() if len(ways) == 1 else None
    return Skip(tuple(sorted(found)), tuple(lacking.values()), way, always)


def _circular(operations: Sequence[Operation], without: set[int]) -> bool:
    """Whether some wait for one another in a circle also without these ranks: then these are only
    held up by it, whatever they have left out."""
    waiting = Counter(rank for one in operations for rank in one.entries if rank not in without)
    lacking: dict[int, list[int]] = defaultdict(list)
    lacks = []
    for place, one in enumerate(operations):
        lacks.append(sum(rank in waiting for rank in one.missing))
        for rank in one.missing:
            lacking[rank].append(place)
    free = [place for place, count in enumerate(lacks) if not count]
    left = len(operations)
    while free:
        left -= 1
        for rank in operations[free.pop()].entries:
            waiting[rank] -= 1
            for place in lacking[rank] if not waiting[rank] else ():
                lacks[place] -= 1
                if not lacks[place]:
                    free.append(place)
    return left > 0


def alone(waits: Waits, end: End) -> Skip | None:
    """Who in a circle are few, and what others wait in for them, where earlier rounds tell nothing.

    None where they did before as they do now: then the others may have left something out.
    """
    operations = [waits.operations[node] for node in end.nodes if node.kind == "collective"]
    odd = set(_minority(waits, operations))
    lack = [one for one in operations if odd and odd <= set(one.missing)]
    pasts = Pasts(waits)
    if not lack or any(pasts.of(rank).is_as_usual for rank in sorted(odd)[:COMPARED]):
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


def _departed(pasts: Pasts, operations: Sequence[Operation]) -> set[int]:
    """Ranks in a circle that left out, of what they did in earlier rounds, what others wait for.

    Empty where that is said of all of them, or where nothing came after it: then it may be put off.
    One earlier round is no habit, and where the last call of another rank in the circle comes as
    never before, that one is what differs.
    """
    found: set[int] = set()
    inside = sorted({rank for one in operations for rank in one.entries})
    for rank in inside if len(inside) <= COMPARED else ():
        lack = pasts.of(rank).lack
        wanted = {(one.node.group, one.entry.call.op) for one in operations if rank in one.missing}
        if lack is None:
            return set()
        if lack.rounds > 1 and wanted & lack.calls:
            found.add(rank)
    return found if len(found) < len(inside) else set()


def _went_past(here: Entry, last: Entry, before: Entry) -> bool | None:
    """Whether a rank came the same way as before, past the place of what it left out.

    One line for all groups, as in a loop over them, does not tell; nor do dumps without stacks.
    """
    if not (here.stack and last.stack and before.stack) or here.stack == last.stack == before.stack:
        return None
    return here.stack == last.stack
