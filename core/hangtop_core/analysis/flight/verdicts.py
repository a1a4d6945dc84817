"""From the ends of the wait-for graph to verdicts."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from hangtop_core.analysis.flight import patterns
from hangtop_core.analysis.flight.shift import locate
from hangtop_core.analysis.flight.waits import Waits, kind
from hangtop_core.analysis.frames import where
from hangtop_core.diagnosis import Culprit, Evidence, Verdict
from hangtop_core.rankset import fold
from hangtop_core.text import clean, duration, plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hangtop_core.analysis.flight.patterns import Pattern
    from hangtop_core.analysis.flight.shift import Shift
    from hangtop_core.analysis.flight.waits import End, Node, Operation
    from hangtop_core.analysis.flight.world import Entry, World

TIE = 0.45
"""Confidence where the ranks are divided into equal halves: there is no majority to trust."""
SHOWN = 4
"""Operations of one verdict whose evidence is spelt out; the others are counted."""
DEEP = 20
"""So many operations in flight in one group are worth a word: the first of them is the hang."""


def name(ranks: Iterable[int]) -> str:
    """`rank 2`, `ranks 0-1,3`."""
    numbers = set(ranks)
    return ("rank " if len(numbers) == 1 else "ranks ") + fold(numbers)


def verb(ranks: Sequence[int], one: str, many: str) -> str:
    """The form that fits the number of ranks."""
    return one if len(set(ranks)) == 1 else many


def conclude(waits: Waits) -> list[Verdict]:
    """All first causes as verdicts, the surest first."""
    ends = waits.ends()
    found = [
        *_from_ranks(waits, ends),
        *(_circle(waits, end) for end in ends if len(end.nodes) > 1),
        *_from_operations(waits, ends),
        *_from_absent(waits, ends),
    ]
    return sorted(found, key=lambda one: (-one.confidence, -len(one.victims)))


# --- ranks that have nothing in flight


def _from_ranks(waits: Waits, ends: Sequence[End]) -> Iterable[Verdict]:
    alone = {
        end.nodes[0].source: end
        for end in ends
        if len(end.nodes) == 1
        and end.nodes[0].kind == "rank"
        and end.nodes[0].source in waits.world.traces
    }
    for ranks, operations in _together(waits, sorted(alone)):
        victims = sorted({v for rank in ranks for v in alone[rank].victims} - set(ranks))
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
        main = _main(collectives)
        issued = sorted(rank for _, members in main.classes for rank in members)
        if len(issued) * 4 <= len(issued) + len(main.missing) and set(main.missing) <= set(ranks):
            yield _alone(waits, main, issued)
        else:
            yield _missing(waits, ranks, operations, main, victims)


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


def _main(operations: Sequence[Operation]) -> Operation:
    """The one most ranks wait in; of several the oldest."""
    return min(operations, key=lambda one: (-len(one.entries), _issued_ns(one), one.node))


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
        f"{name(ranks)} did not issue {_named(main)} that {name(waiting)} "
        f"{verb(waiting, 'waits', 'wait')} for"
    )
    behind = [rank for rank in victims if rank not in waiting]
    facts = [_far(world, main, lack), *_facts(waits, operations, main)]
    pattern = patterns.MISSING
    if shift is not None and shift.how == "skipped":
        pattern = patterns.SKIPPED
        text = f"{_skip_text(shift)} on {main.label}; noticed as {main.entry.name}"
    if behind:
        text += f"; {name(behind)} {verb(behind, 'waits', 'wait')} behind those"
    if shift is not None:
        facts.insert(0, _shift_fact(world, main.node.group, shift))
    steps = [f"take the stack of {name(ranks)}: hangtop dump, or py-spy dump, on its node"]
    if shift is None and (place := main.entry.site) is not None:
        steps.insert(0, f"look for a condition that differs between ranks around {where(place)}")
    return _verdict(pattern, text, ranks, victims, facts, steps)


def _perhaps(
    waits: Waits, ranks: Sequence[int], operations: Sequence[Operation], victims: Sequence[int]
) -> Verdict:
    main = _main(operations)
    text = (
        f"{name(main.entries)} {verb(sorted(main.entries), 'waits', 'wait')} in "
        f"{_named(main)}, whose members are not recorded; {name(ranks)} "
        f"{verb(ranks, 'has', 'have')} not used that group and {verb(ranks, 'has', 'have')} nothing "
        f"in flight"
    )
    facts = _facts(waits, operations, main)
    return _verdict(patterns.MISSING, text, ranks, victims, facts, confidence=0.6)


def _alone(waits: Waits, main: Operation, issued: Sequence[int]) -> Verdict:
    text = (
        f"only {name(issued)} issued {_named(main)}: {name(main.missing)} did not, and "
        f"{verb(main.missing, 'has', 'have')} nothing in flight. Either the call stands under a "
        f"condition, or the others are all held up outside of communication"
    )
    facts = [_far(waits.world, main, main.missing), *_facts(waits, [main], main)]
    return _verdict(patterns.ALONE, text, issued, (), facts)


def _chain(
    waits: Waits,
    ranks: Sequence[int],
    operations: Sequence[Operation],
    victims: Sequence[int],
    hops: int,
) -> Verdict:
    main = _main(operations)
    waiter = next(iter(main.entries))
    call = "recv" if main.entry.call.kind == "send" else "send"
    text = (
        f"{name(ranks)} has posted no {call} for what rank {waiter} waits in: "
        f"{_named(main)}, and has nothing in flight"
    )
    if hops > 1:
        text += f"; {name(victims)} wait behind it in a chain of up to {hops} steps"
    return _verdict(
        patterns.P2P_CHAIN,
        text,
        ranks,
        victims,
        _facts(waits, operations, main),
        [f"take the stack of {name(ranks)}: hangtop dump, or py-spy dump, on its node"],
    )


# --- circles


def _circle(waits: Waits, end: End) -> Verdict:
    world = waits.world
    operations = [waits.operations[node] for node in end.nodes if node.kind != "rank"]
    inside = {node.source for node in end.nodes if node.kind == "rank"}
    inside |= {rank for one in operations for rank in one.entries}
    sides = {one.node: sorted(set(one.entries) & inside) for one in operations}
    said = "; ".join(
        f"{name(sides[one.node])} {verb(sides[one.node], 'waits', 'wait')} in {_named(one)} "
        f"{_for_whom(waits, one)}"
        for one in operations[:SHOWN]
    )
    if all(one.node.kind == "p2p" for one in operations):
        text = f"{name(inside)} wait for one another in a circle: {said}"
        return _verdict(
            patterns.P2P_CIRCLE, text, sorted(inside), end.victims, _facts(waits, operations)
        )
    blamed, left_out = _odd_one(waits, operations, sides)
    confidence = None
    pattern = patterns.INVERSION
    text = f"{name(inside)} wait for one another in a circle: {said}"
    facts = _facts(waits, operations)
    if blamed and left_out:
        pattern = patterns.SKIPPED
        text = f"{left_out}. {text}"
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
    return _verdict(pattern, text, blamed, victims, facts, steps, confidence)


def _for_whom(waits: Waits, operation: Operation) -> str:
    if operation.missing:
        return f"for {name(operation.missing)}"
    behind = [waits.operations[node] for node in waits.edges[operation.node] if node.kind != "rank"]
    names = ", ".join(sorted({_named(one) for one in behind})[:2])
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
    """The smaller side of a circle of two groups, of the ranks that are in both: they had a choice."""
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
    before = None
    # Walk back from the present wait: did the same call come after `wanted` the last time?
    trace = world.traces[rank]
    earlier = [
        at for at in range(here.at) if world.group_of(rank, trace.group[at]) in (group, here.group)
    ]
    last = next((at for at in reversed(earlier) if _alike(world.entry(rank, at), here)), None)
    if last is None:
        return None
    for at in reversed([one for one in earlier if one < last]):
        before = world.entry(rank, at)
        break
    if before is None or before.group != group or kind(before) != wanted:
        return None
    # The same was due before the present call, and is not there.
    since = [world.entry(rank, at) for at in earlier if at > last]
    if any(one.group == group and kind(one) == wanted for one in since):
        return None
    return _named(operation)


def _alike(one: Entry, other: Entry) -> bool:
    return one.group == other.group and kind(one) == kind(other)


# --- operations that all have joined, or in which they disagree


def _from_operations(waits: Waits, ends: Sequence[End]) -> Iterable[Verdict]:
    stuck = []
    for end in ends:
        if len(end.nodes) != 1 or end.nodes[0].kind == "rank":
            continue
        operation = waits.operations[end.nodes[0]]
        if len(operation.classes) > 1:
            yield _mismatch(waits, operation, end)
        else:
            stuck.append((operation, end))
    if stuck:
        others = any(len(end.nodes) > 1 or end.nodes[0].kind == "rank" for end in ends)
        yield _transport(waits, stuck, others)


def _mismatch(waits: Waits, operation: Operation, end: End) -> Verdict:
    world = waits.world
    most, rest = operation.classes[0], operation.classes[1:]
    blamed = sorted(rank for _, ranks in rest for rank in ranks)
    victims = sorted(set(end.victims) - set(blamed))
    pattern = _kind_of_mismatch(most[0], [entry for entry, _ in rest])
    tied = len(rest[0][1]) == len(most[1])
    said = "; ".join(
        f"{name(ranks)} issued {clean(entry.call.text, 120)}{_at_site(entry)}"
        for entry, ranks in operation.classes[:SHOWN]
    )
    text = f"{name(blamed)} {verb(blamed, 'is', 'are')} in another call than " + (
        "the other half" if tied else "most"
    )
    text += f" as #{operation.node.seq} on {operation.label}: {said}"
    facts = _facts(waits, [operation])
    confidence = TIE if tied else None
    shift = None
    if operation.node.kind == "collective":
        shift = locate(world, rest[0][1][0], operation.node.group, most[1])
    if shift is not None and (shift.how != "differs" or shift.seq < operation.node.seq):
        facts.insert(0, _shift_fact(world, operation.node.group, shift))
    if shift is not None and shift.how == "skipped" and pattern is not patterns.TYPES:
        pattern = patterns.SKIPPED
        text = f"{_skip_text(shift)} on {operation.label}; noticed as #{operation.node.seq}: {said}"
    elif shift is not None and shift.how == "added" and pattern is not patterns.TYPES:
        pattern = patterns.ALONE
        confidence = confidence or 0.85
        found = f"{clean(shift.found.call.op, 80)} #{shift.seq}{_at_site(shift.found)}"
        text = f"{name(blamed)} issued {found}, which the others do not call; noticed as #{operation.node.seq} on {operation.label}: {said}"
    return _verdict(pattern, text, blamed, victims, facts, None, confidence)


def _kind_of_mismatch(most: Entry, rest: Sequence[Entry]) -> Pattern:
    if any(
        one.call.op != most.call.op and one.call.kind == most.call.kind == "collective"
        for one in rest
    ):
        return patterns.MISMATCHED
    sides = (most.call.inputs, most.call.outputs)
    if any((one.call.inputs, one.call.outputs) != sides for one in rest):
        return patterns.SIZES
    return patterns.TYPES


def _transport(waits: Waits, stuck: Sequence[tuple[Operation, End]], others: bool) -> Verdict:
    world = waits.world
    operations = [operation for operation, _ in stuck]
    main = _main(operations)
    waiting = sorted({rank for one in operations for rank in one.entries})
    victims = sorted({v for _, end in stuck for v in end.victims} | set(waiting))
    passed = sorted({rank for one in operations for rank in one.passed})
    more = len(operations) - 1
    known = len(main.entries) + len(main.passed)
    facts = _facts(waits, operations, main)
    if passed:
        culprits: Sequence[int] = waiting
        text = (
            f"{_named(main)} is over on {name(main.passed or passed)} but not on "
            f"{name(main.entries)}, who all have joined it: these ranks, their GPUs or their links "
            f"do not get on"
        )
    else:
        culprits = ()
        who = f"all {known} ranks" if known > 1 else f"rank {waiting[0]}"
        text = f"{who} of {main.label} have issued {main.entry.name} alike and none is through"
        text += f"; so {plural(more, 'more operation')}" if more else ""
        text += (
            ". Ruled out: a rank that stays away, a different call, size or type, another order of "
            "groups. What is left is the network, a GPU or its driver, or the library itself"
        )
    if main.unsure:
        text += f"; of {name(main.unsure)} it is not known whether they joined"
    confidence = patterns.TRANSPORT.confidence * (0.5 if others else 1.0)
    group = world.groups[main.node.group]
    if not group.configured and len(group.members) < len(world.ranks):
        confidence *= 0.5
        text += ". The members of the group are not recorded: there may be more of them"
    steps = [
        f"on the nodes of {name(main.entries)}: dmesg for Xid and link errors, nvidia-smi, ibstat",
        "if the job was running when these were dumped, this is merely an operation under way: "
        "dump again and compare the numbers",
    ]
    victims = sorted(set(victims) - set(culprits))
    return _verdict(patterns.TRANSPORT, text, culprits, victims, facts, steps, confidence)


def _from_absent(waits: Waits, ends: Sequence[End]) -> Iterable[Verdict]:
    absent = set(waits.world.absent)
    found = {
        end.nodes[0].source: end
        for end in ends
        if len(end.nodes) == 1 and end.nodes[0].kind == "rank" and end.nodes[0].source in absent
    }
    if not found:
        return
    operations = [
        one
        for one in waits.operations.values()
        if any(n.kind == "rank" and n.source in found for n in waits.edges[one.node])
    ]
    main = _main(operations)
    ranks = sorted(found)
    issued = sorted(rank for _, members in main.classes for rank in members)
    text = (
        f"{name(ranks)} left no dump, and all others of {main.label} "
        f"({name(issued)}) have issued {main.entry.name}: {name(ranks)} died, "
        f"{verb(ranks, 'is', 'are')} stopped or held up, or the dump was not collected"
    )
    victims = sorted({v for end in found.values() for v in end.victims})
    share = len(issued) / (len(issued) + len(main.absent))
    confidence = patterns.ABSENT.confidence * (1.0 if share > 0.5 else 0.6)
    yield _verdict(
        patterns.ABSENT, text, ranks, victims, _facts(waits, operations, main), None, confidence
    )


# --- evidence


def _facts(
    waits: Waits, operations: Sequence[Operation], main: Operation | None = None
) -> list[Evidence]:
    ordered = sorted(operations, key=lambda one: (one is not main, -len(one.entries), one.node))
    facts = [_fact(None, _fact_text(waits.world, one)) for one in ordered[:SHOWN]]
    if len(ordered) > SHOWN:
        facts.append(_fact(None, f"{plural(len(ordered) - SHOWN, 'more operation')} alike"))
    shown = ordered[0]
    if shown.depth >= DEEP:
        text = f"{shown.entry.name} is the oldest of {shown.depth} operations in flight on {shown.label}: those behind it merely queue"
        facts.append(_fact(None, text))
    return facts


def _fact_text(world: World, one: Operation) -> str:
    text = "; ".join(
        f"{name(ranks)} issued {clean(entry.call.text, 160)} as #{entry.seq} on "
        f"{one.label}{_at_site(entry)}"
        for entry, ranks in one.classes[:SHOWN]
    )
    if one.node.kind == "p2p":
        text = f"{name(one.entries)}: {clean(one.entry.call.name, 80)} {clean(one.entry.call.inputs, 80)} on {one.label}, rank {one.node.source} to rank {one.node.target}{_at_site(one.entry)}"
    if one.missing:
        text += f"; {name(one.missing)} {verb(one.missing, 'has', 'have')} not"
    if one.passed:
        text += f"; over on {name(one.passed)}"
    if one.absent:
        text += f"; no dump of {name(one.absent)}"
    late = sorted(rank for rank, entry in one.entries.items() if entry.timed_out)
    if late:
        text += f"; timed out on {name(late)}"
    when = _issued_ns(one)
    if when:
        text += f"; since {datetime.fromtimestamp(when / 1e9, UTC):%H:%M:%S} UTC"
    return text


def _far(world: World, operation: Operation, ranks: Sequence[int]) -> Evidence:
    """How far the ranks came that others wait for."""
    group = world.groups[operation.node.group]
    came = Counter(group.by_rank[rank].newest for rank in ranks if rank in group.by_rank)
    said = []
    for newest, _ in came.most_common(SHOWN):
        those = [r for r in ranks if r in group.by_rank and group.by_rank[r].newest == newest]
        counters = any(group.by_rank[rank].from_status for rank in those)
        how = " (from its counters: the recorder holds no entry)" if counters else ""
        last = f"#{newest}" if newest else "none"
        said.append(f"last of {name(those)} on {group.label}: {last}{how}")
    return _fact(ranks[0] if len(ranks) == 1 else None, "; ".join(said) + "; nothing in flight")


def _shift_fact(world: World, group: int, shift: Shift) -> Evidence:
    """Where the sequences part."""
    label = world.groups[group].label
    text = (
        f"#{shift.seq} on {label} is the first number that differs: "
        f"{clean(shift.found.call.text, 120)}{_at_site(shift.found)} here, "
        f"{clean(shift.expected.call.text, 120)}{_at_site(shift.expected)} on the others"
    )
    if shift.how == "skipped":
        text += "; from there on its calls are those of the others, one number early"
    elif shift.how == "added":
        text += "; from there on its calls are those of the others, one number late"
    if shift.first < shift.seq:
        text += f"; #{shift.first} to #{shift.seq} look alike: it was one of these"
    return _fact(shift.rank, text)


def _skip_text(shift: Shift) -> str:
    one = f"{clean(shift.expected.call.op, 80)} #{shift.seq}{_at_site(shift.expected)}"
    if shift.first < shift.seq:
        one = f"{clean(shift.expected.call.op, 80)}, one of #{shift.first} to #{shift.seq}{_at_site(shift.expected)},"
    return f"rank {shift.rank} skipped {one}"


def _named(one: Operation) -> str:
    """`all_reduce #17 on default_pg`."""
    if one.node.kind == "p2p":
        way = f"rank {one.node.source} -> rank {one.node.target}"
        return f"{clean(one.entry.call.op, 80)} {way} on {one.label}"
    return f"{one.entry.name} on {one.label}"


def _at_site(entry: Entry) -> str:
    return f" at {clean(where(entry.site), 200)}" if entry.site is not None else ""


def _issued_ns(one: Operation) -> int:
    """When the first rank issued it; 0 when unknown."""
    return min((e.created_ns for e in one.entries.values() if e.created_ns), default=0)


def _fact(rank: int | None, text: str) -> Evidence:
    return Evidence("flight", rank, clean(text, 600))


def _verdict(
    pattern: Pattern,
    text: str,
    culprits: Sequence[int],
    victims: Sequence[int],
    facts: Sequence[Evidence],
    steps: Sequence[str] | None = None,
    confidence: float | None = None,
) -> Verdict:
    return Verdict(
        cause=pattern.cause,
        confidence=round(pattern.confidence if confidence is None else confidence, 2),
        culprits=tuple(Culprit(rank, "", None) for rank in culprits),
        victims=tuple(sorted(set(victims) - set(culprits))),
        summary=clean(text, 800),
        evidence=tuple(facts),
        next_steps=tuple(pattern.next_steps if steps is None else steps),
    )


def waited(world: World, waits: Waits) -> float | None:
    """Seconds from the oldest operation in flight to the newest time in any trace; None: unknown.

    The dumps were written then or later, so the hang has lasted at least as long.
    """
    oldest = min((at for one in waits.operations.values() if (at := _issued_ns(one))), default=0)
    newest = max((trace.newest_ns for trace in world.traces.values()), default=0)
    return (newest - oldest) / 1e9 if oldest and newest > oldest else None


__all__ = ["conclude", "duration", "name", "verb", "waited"]
