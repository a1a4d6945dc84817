"""Operations that all ranks have joined: they disagree about it, or it just does not end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.flight import patterns
from hangtop_core.analysis.flight.alike import rooted
from hangtop_core.analysis.flight.evidence import (
    SHOWN,
    at_site,
    facts,
    main_of,
    name,
    named,
    shift_fact,
    skip_text,
    verb,
    verdict,
)
from hangtop_core.analysis.flight.letthrough import TIE, let_through
from hangtop_core.analysis.flight.shift import locate
from hangtop_core.analysis.flight.unlike import same_bytes, unlike
from hangtop_core.analysis.flight.waits import all_victims
from hangtop_core.text.clean import clean, plural
from hangtop_core.text.commands import Advice, Command, Sign
from hangtop_core.text.rank_sets import rank_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hangtop_core.analysis.flight.patterns import Pattern
    from hangtop_core.analysis.flight.unlike import Unlike
    from hangtop_core.analysis.flight.waits import End, Operation, Waits
    from hangtop_core.analysis.flight.world import Entry
    from hangtop_core.diagnosis import Verdict

_HARDWARE = (
    *("nvidia-smi", Sign.THEN, "ibstat", Sign.THEN, "dmesg", "-T", Sign.PIPE),
    *("grep", "-i", "-e", "xid", "-e", "link"),
)
_UNDER_WAY = Advice(
    "if the job was running when these were dumped, this is merely an operation under way: dump "
    "again and compare the numbers"
)
MAX_APART = 64
"""Sets of ranks of which it is told that others may have to join them: those with most victims."""
AGREED_SINCE = 0.6
"""Confidence where types differed before, and ranks issued the same in between, or are halves."""


def from_operations(waits: Waits, ends: Sequence[End]) -> Iterable[Verdict]:
    """The verdicts on operations at which the graph ends; those that merely do not end make one."""
    stuck: list[tuple[Operation, End]] = []
    before: dict[int, Verdict] = {}
    apart: dict[tuple[int, ...], Verdict] = {}
    for end in ends:
        if len(end.nodes) != 1 or end.nodes[0].kind == "rank":
            continue
        operation = waits.operations[end.nodes[0]]
        if len(operation.classes) > 1:
            yield _mismatch(waits, operation, end)
        elif operation.open:
            ranks = tuple(sorted(operation.entries))
            if ranks not in apart and len(apart) < MAX_APART:
                apart[ranks] = _apart(waits, operation, end)
        elif (first := let_through(waits, operation, end.victims)) is not None:
            before.setdefault(operation.node.group, first)
        else:
            stuck.append((operation, end))
    yield from (*apart.values(), *before.values())
    if stuck:
        more = any(len(end.nodes) > 1 or end.nodes[0].kind == "rank" for end in ends)
        yield _transport(waits, stuck, more or bool(before))


def _mismatch(waits: Waits, operation: Operation, end: End) -> Verdict:
    world = waits.world
    if (first := unlike(world, operation)) is not None:
        return _unlike(waits, operation, end, first)
    most, rest = operation.classes[0], operation.classes[1:]
    blamed = sorted(rank for _, ranks in rest for rank in ranks)
    victims = sorted(set(end.victims) - set(blamed))
    pattern = _kind_of_mismatch(most[0], [entry for entry, _ in rest])
    tied = len(rest[0][1]) == len(most[1])
    said = "; ".join(
        f"{name(ranks)} issued {clean(entry.call.text, 120)}{at_site(entry)}"
        for entry, ranks in operation.classes[:SHOWN]
    )
    text = f"{name(blamed)} {verb(blamed, 'is', 'are')} in another call than " + (
        _others(operation.classes, tied)
    )
    text += f" as #{operation.node.seq} on {operation.label}: {said}"
    found = facts(waits, [operation])
    confidence = TIE if tied else None
    shift = None
    if operation.node.kind == "collective":
        shift = locate(world, rest[0][1][0], operation.node.group, most[1])
    differs = shift is None or shift.how == "differs"
    if differs and (before := _let_through(waits, operation, end, blamed)) is not None:
        return before
    if shift is not None and (shift.how != "differs" or shift.seq < operation.node.seq):
        found.insert(0, shift_fact(world, operation.node.group, shift))
    if shift is not None and shift.how == "skipped" and pattern is not patterns.TYPES:
        pattern = patterns.SKIPPED
        text = f"{skip_text(shift)} on {operation.label}; noticed as #{operation.node.seq}: {said}"
    elif shift is not None and shift.how == "added" and pattern is not patterns.TYPES:
        pattern = patterns.ALONE
        confidence = confidence or 0.85
        extra = f"{clean(shift.found.call.op, 80)} #{shift.seq}{at_site(shift.found)}"
        text = (
            f"{name(blamed)} issued {extra}, which the others do not call"
            f"{' there' if shift.known else ''}; noticed as "
            f"#{operation.node.seq} on {operation.label}: {said}"
        )
    return verdict(pattern, text, blamed, victims, found, None, confidence)


def _let_through(
    waits: Waits, operation: Operation, end: End, blamed: Sequence[int]
) -> Verdict | None:
    """The verdict on another call of the same ranks that went through before, but for types."""
    one = let_through(waits, operation, end.victims)
    if one is None or one.cause == patterns.TYPES.cause:
        return None
    return one if {culprit.rank for culprit in one.culprits} == {*blamed} else None


def _unlike(waits: Waits, operation: Operation, end: End, first: Unlike) -> Verdict:
    """They went on with other types before: what they disagree about now came of it."""
    (usual, most), (odd, _) = first.classes[:2]
    said, since = (
        "; ".join(
            f"{name(ranks)} issued {clean(entry.call.text, 120)}{at_site(entry)}"
            for entry, ranks in some[:SHOWN]
        )
        for some in (first.classes, operation.classes)
    )
    alike = "as many bytes, and " if same_bytes(usual.call, odd.call) else ""
    text = (
        f"{name(first.odd)} issued {clean(odd.call.op, 80)} #{usual.seq} on {operation.label} with "
        f"another data type than {_others(first.classes, first.tied)}, and it went on "
        f"({alike}types are not compared): {said}. That is the first number at which they "
        f"differ; since #{operation.node.seq} they wait in calls that do not belong together: "
        f"{since}"
    )
    confidence = AGREED_SINCE if first.agreed or first.tied else None
    victims = sorted((set(end.victims) | set(most)) - set(first.odd))
    found = facts(waits, [operation])
    return verdict(patterns.TYPES, text, first.odd, victims, found, None, confidence)


def _others(classes: Sequence[tuple[Entry, tuple[int, ...]]], tied: bool) -> str:
    """Than whom some ranks have issued something else: the ranks of the first class."""
    if not tied:
        return "most"
    return "the other half" if len(classes) == 2 else name(classes[0][1])


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


def _apart(waits: Waits, operation: Operation, end: End) -> Verdict:
    """Ranks in a group of which others may be members that have not joined: never all of them."""
    ranks = sorted(operation.entries)
    waits_in = f"{verb(ranks, 'waits', 'wait')} in {named(operation)}, whose members are not "
    waits_in += "recorded"
    lack = [one for one in waits.lacking[ranks[0]] if set(ranks) <= set(one.missing)]
    victims = sorted(set(end.victims) - set(ranks))
    found = facts(waits, [operation, *lack], operation)
    if not lack or len(ranks) > len(victims):
        text = f"{name(ranks)} {waits_in}: of others it is not known whether they have to join"
        return verdict(patterns.MISSING, text, (), end.victims, found, confidence=0.3)
    main = main_of(lack)
    text = (
        f"{name(ranks)} did not issue {named(main)} that {name(main.entries)} "
        f"{verb(sorted(main.entries), 'waits', 'wait')} for, and {waits_in}. Either that call "
        f"stands under a condition, or others of that group have left it out"
    )
    pattern = patterns.ALONE if 2 * len(ranks) <= len(victims) else patterns.MISSING
    return verdict(pattern, text, ranks, victims, found, confidence=patterns.ALONE.confidence)


def _transport(waits: Waits, stuck: Sequence[tuple[Operation, End]], others: bool) -> Verdict:
    operations = [operation for operation, _ in stuck]
    main = main_of(operations)
    waiting = sorted({rank for one in operations for rank in one.entries})
    victims = sorted(all_victims(end for _, end in stuck) | set(waiting))
    passed = sorted({rank for one in operations for rank in one.passed})
    more = len(operations) - 1
    known = len(main.entries) + len(main.passed)
    found = facts(waits, operations, main)
    unsaid = _unsaid(main.entry)
    culprits: Sequence[int] = ()
    if passed and unsaid:
        text = (
            f"{named(main)} is over on {name(main.passed or passed)} but not on "
            f"{name(main.entries)}, who all have joined it. Ranks may differ in {unsaid}, which "
            f"recorders do not hold; else these ranks, their GPUs or their links do not get on"
        )
    elif passed:
        culprits = waiting
        text = (
            f"{named(main)} is over on {name(main.passed or passed)} but not on "
            f"{name(main.entries)}, who all have joined it: these ranks, their GPUs or their links "
            f"do not get on"
        )
    else:
        who = (
            f"all {known} ranks of {main.label} have"
            if known > 1
            else f"{rank_name(waiting[0])} has"
        )
        through = (
            "alike and none is through" if known > 1 else f"on {main.label} and is not through"
        )
        text = f"{who} issued {main.entry.name} {through}"
        if main.node.kind == "p2p":
            text = f"{named(main)}: both have posted their end, and none is through"
        text += f"; so {plural(more, 'more operation')}" if more else ""
        text += (
            ". Ruled out: a rank that stays away, a different call, size or type, another order of "
            "groups. What is left is the network, a GPU or its driver, or the library itself"
        )
        text += f"; or ranks differ in {unsaid}, which recorders do not hold" if unsaid else ""
    if main.unsure:
        text += f"; of {name(main.unsure)} it is not known whether they joined"
    confidence = patterns.TRANSPORT.confidence * (0.5 if others else 1.0)
    confidence *= 0.7 if unsaid else 1.0
    look = Command("", _HARDWARE, f"on the nodes of {name(main.entries)}")
    victims = sorted(set(victims) - set(culprits))
    return verdict(
        patterns.TRANSPORT, text, culprits, victims, found, (look, _UNDER_WAY), confidence
    )


def _unsaid(entry: Entry) -> str:
    """What ranks may disagree about without a recorder showing it; who is through says nothing.

    The root of a broadcast, and who sends to it in a gather, is through before the others.
    """
    op = entry.call.op.lower().lstrip("_")
    if op.startswith(("all_to_all", "alltoall")):
        return "how they split it"
    return "which one is its root" if rooted(entry.call) else ""
