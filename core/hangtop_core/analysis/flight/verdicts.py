"""From the ends of the wait-for graph to verdicts; those on single ranks are made here."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hangtop_core.analysis.flight import patterns
from hangtop_core.analysis.flight.circles import circle
from hangtop_core.analysis.flight.evidence import (
    SHOWN,
    end_facts,
    end_of,
    facts,
    far,
    issued_ns,
    main_of,
    name,
    named,
    shift_fact,
    skip_text,
    verb,
    verdict,
)
from hangtop_core.analysis.flight.joined import from_operations
from hangtop_core.analysis.flight.letthrough import TIE, let_through
from hangtop_core.analysis.flight.shift import locate
from hangtop_core.analysis.flight.waits import all_victims
from hangtop_core.model.frames import where
from hangtop_core.text.commands import Advice
from hangtop_core.text.rank_sets import rank_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hangtop_core.analysis.flight.waits import End, Operation, Waits
    from hangtop_core.analysis.flight.world import World
    from hangtop_core.diagnosis import Verdict

MANY_ABSENT = 0.25
"""Share of ranks without a dump from which on a missing dump says nothing about its rank.

Dumps that cannot be read are no missing dumps: their ranks are never named for want of one.
"""

FOLLOWS = 0.5
"""Most that is believed of ranks that stay away where calls of others differed before."""


def conclude(waits: Waits) -> list[Verdict]:
    """All first causes as verdicts, the surest first."""
    ends = waits.ends
    found = [
        *_from_ranks(waits, ends),
        *(circle(waits, end) for end in ends if len(end.nodes) > 1),
        *from_operations(waits, ends),
        *_from_absent(waits, ends),
    ]
    return sorted(found, key=lambda one: (-one.confidence, -len(one.victims)))


def _from_ranks(waits: Waits, ends: Sequence[End]) -> Iterable[Verdict]:
    alone = {
        end.nodes[0].source: end
        for end in ends
        if len(end.nodes) == 1
        and end.nodes[0].kind == "rank"
        and end.nodes[0].source in waits.world.traces
    }
    for ranks, operations in _together(waits, sorted(alone)):
        victims = sorted(all_victims(alone[rank] for rank in ranks) - set(ranks))
        hops = max(alone[rank].hops for rank in ranks)
        collectives = [one for one in operations if one.node.kind == "collective"]
        sure = [one for one in collectives if one.missing]
        if collectives and not sure:
            yield _perhaps(waits, ranks, collectives, victims)
            continue
        collectives = sure
        if not collectives:
            yield _chain(waits, ranks, operations, victims, hops)
            continue
        main = main_of(collectives)
        issued = sorted(rank for _, members in main.classes for rank in members)
        if len(issued) * 4 <= len(issued) + len(main.missing) and set(main.missing) <= set(ranks):
            yield from _after(waits, main, _alone(waits, main, issued))
        else:
            yield from _after(waits, main, _missing(waits, ranks, operations, main, victims))


def _together(waits: Waits, ranks: Sequence[int]) -> Iterable[tuple[list[int], list[Operation]]]:
    """Put ranks together that lack in one operation, each set with all operations it lacks in."""
    owner = {rank: rank for rank in ranks}
    lacking: dict[int, list[Operation]] = defaultdict(list)
    for operation in waits.operations.values():
        inside = [rank for rank in operation.missing or operation.perhaps if rank in owner]
        roots = sorted({_root(owner, rank) for rank in inside})
        for other in roots[1:]:
            owner[other] = roots[0]
        for rank in inside:
            lacking[rank].append(operation)
    sets: dict[int, list[int]] = defaultdict(list)
    for rank in ranks:
        sets[_root(owner, rank)].append(rank)
    for members in sets.values():
        by_node = {one.node: one for rank in members for one in lacking[rank]}
        yield members, [by_node[node] for node in sorted(by_node)]


def _root(owner: dict[int, int], rank: int) -> int:
    while owner[rank] != rank:
        owner[rank] = owner[owner[rank]]
        rank = owner[rank]
    return rank


def _missing(
    waits: Waits,
    ranks: Sequence[int],
    operations: Sequence[Operation],
    main: Operation,
    victims: Sequence[int],
) -> Verdict:
    world, waiting = waits.world, sorted(main.entries)
    lack = [rank for rank in ranks if rank in main.missing]
    others = [rank for rank in main.classes[0][1] if rank not in ranks]
    shift = next(
        (one for rank in lack[:SHOWN] if (one := locate(world, rank, main.node.group, others))),
        None,
    )
    text = (
        f"{name(ranks)} did not issue {named(main)} that {name(waiting)} "
        f"{verb(waiting, 'waits', 'wait')} for"
    )
    if (end := end_of(world, ranks)) is not None:
        whom = verb(ranks, "it", "them")
        text = f"{name(ranks)} {end}, and {name(waiting)} waited for {whom} in {named(main)}"
    behind = [rank for rank in victims if rank not in waiting]
    found = [far(world, main, lack), *facts(waits, operations, main), *end_facts(world, waiting)]
    pattern = patterns.MISSING
    if shift is not None and shift.how == "skipped":
        pattern = patterns.SKIPPED
        text = f"{skip_text(shift)} on {main.label}; noticed as {main.entry.name}"
    if behind:
        text += f"; {name(behind)} {verb(behind, 'waits', 'wait')} behind those"
    if shift is not None:
        found.insert(0, shift_fact(world, main.node.group, shift))
    steps = [_stack_step(ranks) if end is None else _end_step(ranks)]
    if any(trace.ended == "running" for rank, trace in world.traces.items() if rank in ranks):
        steps = [_log_step(ranks)]
    if shift is None and (place := main.entry.site) is not None:
        look = f"look for a condition that differs between ranks around {where(place)}"
        steps.insert(0, Advice(look))
    return verdict(pattern, text, ranks, victims, found, steps)


def _perhaps(
    waits: Waits, ranks: Sequence[int], operations: Sequence[Operation], victims: Sequence[int]
) -> Verdict:
    main = main_of(operations)
    text = (
        f"{name(main.entries)} {verb(sorted(main.entries), 'waits', 'wait')} in "
        f"{named(main)}, whose members are not recorded; {name(ranks)} "
        f"{verb(ranks, 'has', 'have')} not used that group, with nothing in flight"
    )
    found = facts(waits, operations, main)
    return verdict(patterns.MISSING, text, ranks, victims, found, confidence=0.6)


def _alone(waits: Waits, main: Operation, issued: Sequence[int]) -> Verdict:
    text = (
        f"only {name(issued)} issued {named(main)}: {name(main.missing)} did not, and "
        f"{verb(main.missing, 'has', 'have')} nothing in flight. "
    )
    end = end_of(waits.world, main.missing)
    if end is not None:
        text += f"The others {end}"
    else:
        text += (
            "Either the call stands under a condition, or the others are all held up outside of "
            "communication"
        )
    found = [far(waits.world, main, main.missing), *facts(waits, [main], main)]
    found += end_facts(waits.world, issued)
    return verdict(patterns.ALONE, text, issued, (), found)


def _chain(
    waits: Waits,
    ranks: Sequence[int],
    operations: Sequence[Operation],
    victims: Sequence[int],
    hops: int,
) -> Verdict:
    main = main_of(operations)
    waiter = next(iter(main.entries))
    call = "recv" if main.entry.call.kind == "send" else "send"
    text = (
        f"{name(ranks)} has posted no {call} for what {rank_name(waiter)} waits in: "
        f"{named(main)}, and has nothing in flight"
    )
    if hops > 1:
        text += f"; {name(victims)} wait behind it in a chain of up to {hops} steps"
    return verdict(
        patterns.P2P_CHAIN,
        text,
        ranks,
        victims,
        facts(waits, operations, main),
        [_stack_step(ranks)],
    )


def _end_step(ranks: Sequence[int]) -> Advice:
    why = f"why {verb(ranks, 'it', 'they')} ended there"
    return Advice(f"read the end of the log of {name(ranks)}: {why}")


def _log_step(ranks: Sequence[int]) -> Advice:
    return Advice(f"read in the log of {name(ranks)} where {verb(ranks, 'it', 'they')} came last")


def _stack_step(ranks: Sequence[int]) -> Advice:
    there = verb(ranks, "its node", "their nodes")
    return Advice(f"take the stack of {name(ranks)} on {there}, by `hangtop dump` or py-spy")


def _from_absent(waits: Waits, ends: Sequence[End]) -> Iterable[Verdict]:
    absent = set(waits.world.without_dump)
    lacking = {
        end.nodes[0].source: end
        for end in ends
        if len(end.nodes) == 1 and end.nodes[0].kind == "rank" and end.nodes[0].source in absent
    }
    if not lacking or len(absent) > max(1, len(waits.world.ranks) * MANY_ABSENT):
        # To blame all whose files were not collected would be no verdict.
        return
    operations = [
        one
        for one in waits.operations.values()
        if any(n.kind == "rank" and n.source in lacking for n in waits.edges[one.node])
    ]
    main = main_of(operations)
    ranks = sorted(lacking)
    issued = sorted(rank for _, members in main.classes for rank in members)
    text = (
        f"{name(ranks)} left no dump, and {name(issued)} {verb(issued, 'waits', 'wait')} for "
        f"{verb(ranks, 'it', 'them')} in {named(main)}: {verb(ranks, 'it has', 'they have')} died, "
        f"{verb(ranks, 'is', 'are')} stopped or held up, or the dump was not collected"
    )
    victims = sorted(all_victims(lacking.values()))
    found = [*facts(waits, operations, main), *end_facts(waits.world, issued)]
    yield from _after(waits, main, verdict(patterns.ABSENT, text, ranks, victims, found))


def _after(waits: Waits, main: Operation, one: Verdict) -> Iterable[Verdict]:
    """A verdict on ranks that stay away, after the one on calls of others that differed before.

    Whoever got what others have sent for something else may fail by it.
    """
    blamed = {culprit.rank for culprit in one.culprits}
    first = let_through(waits, main, {*one.victims, *main.missing, *main.absent})
    if (
        first is None
        or first.confidence <= TIE
        or {culprit.rank for culprit in first.culprits} <= blamed
    ):
        yield one
        return
    yield first
    yield replace(one, confidence=min(one.confidence, FOLLOWS))


def waited(world: World, waits: Waits) -> float | None:
    """Seconds from the oldest operation in flight to the newest time in any trace; None: unknown.

    The dumps were written then or later, so the hang has lasted at least as long.
    """
    oldest = min((at for one in waits.operations.values() if (at := issued_ns(one))), default=0)
    newest = max((trace.newest_ns for trace in world.traces.values()), default=0)
    return (newest - oldest) / 1e9 if oldest and newest > oldest else None
