"""Where recorders say more than stacks do: of all ranks together, and of what one waits in."""

from __future__ import annotations

from collections import Counter
from itertools import islice, pairwise
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hangtop_core.analysis.flight import patterns
from hangtop_core.analysis.flight.alike import kind
from hangtop_core.analysis.flight.unlike import unlike
from hangtop_core.analysis.verdict.base import besides
from hangtop_core.analysis.verdict.evidence import fact
from hangtop_core.analysis.verdict.naming import name_ranks

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from hangtop_core.analysis.activity import Activity
    from hangtop_core.analysis.flight.picture import Picture
    from hangtop_core.analysis.flight.waits import Operation
    from hangtop_core.analysis.verdict.base import Subject
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.diagnosis import Evidence, Verdict
    from hangtop_core.model.snapshot import Rank

AGREED = 0.95
"""Confidence where recorders show the ranks that stacks blame to be in another operation."""
_COMPARED = 4
"""Ranks whose calls are compared with those of their rounds before."""
LOW = 0.5
"""Confidence below which recorders do not stand against stacks at different places."""
_DIFFER = frozenset({patterns.SIZES.cause, patterns.TYPES.cause})
_ORDER = _DIFFER | {patterns.INVERSION.cause, patterns.SKIPPED.cause, patterns.ALONE.cause}
"""What is seen where a rank has left the order of the others, and a condition may be why."""


def by_recorders(case: Case) -> Verdict | None:
    """What recorders conclude first, where all ranks wait for one another.

    None where stacks tell more: a rank is elsewhere, was not read, or makes a group; operations
    differ, be it only in size, that were called from different lines (and are not over); or the
    same ranks are in a collective under a condition on the rank.
    """
    seen, making = case.picture, any(s.activity.kind == "new-group" for s in case.waiters)
    if case.suspects or making or seen is None or not seen.diagnosis.verdicts:
        return None
    first, world = seen.diagnosis.verdicts[0], seen.world
    if first.confidence < LOW and len(case.waiting_classes) > 1:
        return None
    if _let_through(seen, first):
        # Where ranks are now says nothing of a call that is over.
        return None if world.absent or world.blank else first
    if first.cause in _ORDER and _under_condition(case, first):
        return None
    if first.cause == patterns.INVERSION.cause:
        return first  # those in a circle prove it, whatever others do
    if world.absent or world.blank or first.cause == patterns.MISMATCHED.cause:
        return None
    if _behind(case, first) or _unrecorded(case, first):
        return None
    return None if first.cause in _DIFFER and _other_lines(case, first) else first


def _let_through(seen: Picture, one: Verdict) -> bool:
    """Whether it is of calls that differed and are over: those under way are alike."""
    differ = {patterns.LET_THROUGH.cause, *_DIFFER}
    return one.cause in differ and not any(o.mismatched for o in seen.waits.operations.values())


def _behind(case: Case, one: Verdict) -> bool:
    """Whether all that are blamed only wait for others in sends that the recorder does not show.

    Those of gloo it has not.
    """
    tied = case.chain or case.knot
    if tied is None or not one.culprits:
        return False
    heads = {s.number for s in tied.subjects}
    return all(c.rank in tied.peers and c.rank not in heads for c in one.culprits)


def _unrecorded(case: Case, one: Verdict) -> bool:
    """Whether most wait in sends that the recorder does not show, as those who are said to lack."""
    seen = case.picture
    if seen is None or 2 * len(case.passing) <= len(case.waiters):
        return False
    quiet = {s.number for s in case.passing if not seen.waits.in_flight(s.number)}
    blamed = {culprit.rank for culprit in one.culprits}
    return bool(quiet) and (quiet >= {s.number for s in case.waiters} - blamed or quiet >= blamed)


def _under_condition(case: Case, one: Verdict) -> bool:
    """Whether all that are blamed, or some of those in a circle, are under one on the rank."""
    blamed = {culprit.rank for culprit in one.culprits}
    tied = 2 * len(blamed) >= len(case.waiters) or one.cause == patterns.INVERSION.cause
    return any(
        (own == blamed or (tied and own < blamed))
        and not (one.cause == patterns.INVERSION.cause and _usual(case, group[0], own))
        for group, _ in case.conditional
        for own in [{s.number for s in group}]
    )


def _usual(case: Case, subject: Subject, own: Collection[int]) -> bool:
    """Whether another of its group has called before what a rank waits in.

    Then all do, in their turn: what differs is the order.
    """
    seen = case.picture
    if seen is None:
        return False
    for node in seen.waits.in_flight(subject.number)[:1]:
        entry = seen.waits.operations[node].entries[subject.number]
        others = (rank for rank in seen.world.groups[node.group].by_rank if rank not in own)
        before = (seen.world.collectives(rank, node.group) for rank in islice(others, 1))
        return any(kind(past) == kind(entry) for some in before for past in some)
    return False


def _other_lines(case: Case, one: Verdict) -> bool:
    """Whether all that are blamed stand at lines at which nobody else does."""
    seen = case.picture
    types = one.cause == patterns.TYPES.cause
    if seen is not None and any(
        _same_call(seen, o) or (types and unlike(seen.world, o) is not None)
        for o in seen.waits.operations.values()
    ):
        return False
    blamed = {culprit.rank for culprit in one.culprits}
    mixed = [members for _, members in case.waiting_classes if blamed & {s.number for s in members}]
    return all(s.number in blamed for members in mixed for s in members)


def _same_call(seen: Picture, operation: Operation) -> bool:
    """Whether an operation that differs is one call on all ranks, of which some are through.

    Gloo lets ranks through small ones of other sizes: where these are now is the next one. Stacks
    of both tell; without any: the others have issued theirs before, less often than what they are
    in now, as often as this rank has; and what this rank issued is not what they issued next.
    """
    if len(operation.classes) < 2 or not operation.passed:
        return False
    sites = {entry.site for entry, _ in operation.classes}
    if None not in sites:
        return len(sites) == 1
    world, node = seen.world, operation.node
    calls = list(world.collectives(operation.passed[0], node.group))
    here = next((call for call in calls if call.seq == node.seq), None)
    often = Counter(map(kind, calls))
    if here is None or often[kind(here)] < 2:
        return False
    # Of what comes in every round one may be lost at the beginning of what is recorded.
    if 4 * often[kind(here)] > 3 * often[kind(calls[-1])]:
        return False
    following = {kind(call) for call in calls if call.seq == node.seq + 1}
    for rank, entry in operation.entries.items():
        if kind(entry) != kind(here):
            past = sum(kind(c) == kind(here) for c in world.collectives(rank, node.group))
            if past != often[kind(here)] - 1 or kind(entry) in following:
                return False
    return True


def outstanding(rank: Rank, activity: Activity) -> bool:
    """Whether, as its recorder has it, what a main thread sleeps in for C code is a collective."""
    asleep = activity.kind == "waiting" and activity.family == "futex"
    trace = rank.recorder.trace if asleep and rank.recorder is not None else None
    return trace is not None and any(trace.pending())


def apart(case: Case, ranks: Collection[int]) -> Operation | None:
    """The collective in which, as recorders have it, these ranks differ from all others.

    They issued another one as its number, or have not issued it.
    """
    own = set(ranks)
    for one in case.in_flight:
        inside = [own.issuperset(members) for _, members in one.classes]
        split = any(own.intersection(members) and not whole
                    for whole, (_, members) in zip(inside, one.classes, strict=True))  # fmt: skip
        if any(inside) and not all(inside) and not split:
            return one
    return next((one for one in case.in_flight if own <= set(one.missing)), None)


def held(case: Case, subject: Subject) -> str:
    """`all_gather #111 on group default_pg`: what a rank waits in; else what its stack calls it."""
    op, seen = subject.activity.op, case.picture
    own = seen.waits.in_flight(subject.number) if seen is not None else ()
    for one in [seen.waits.operations[node] for node in own] if seen is not None else ():
        if op is None or "wait" in op or one.entries[subject.number].call.op == op:
            name = one.entries[subject.number].name
            return f"{name} on group {one.label.removeprefix('group ')}"
    return op or "a collective"


def flight_facts(one: Operation | None, numbers: Sequence[int]) -> list[Evidence]:
    """Who has issued what as the number of an operation."""
    if one is None:
        return []
    issued = one.classes[0][1]
    text = (
        f"{name_ranks(issued)} issued {one.entry.name} on group {one.label.removeprefix('group ')}"
    )
    if one.missing:
        text += f"; the last operation of {name_ranks(one.missing)} comes before it"
    for entry, ranks in one.classes[1:]:
        text += f"; {name_ranks(ranks)} issued {entry.call.text} as #{entry.seq}"
    rank = numbers[0] if len(numbers) == 1 else None
    return [fact("flight", rank, text)]


def reduced_none(case: Case, one: Operation | None, odd: Sequence[Subject]) -> str:
    """That ranks reduced no gradients in a backward in which others wait; empty where unknown.

    Since they last came to what they wait in, they issued as many operations less than in the
    two rounds before as the others have issued for that backward.
    """
    seen, others = case.picture, besides(case.waiters, odd)
    if seen is None or one is None or len(odd) > _COMPARED or not others:
        return ""
    by_rank = seen.world.groups[one.node.group].by_rank
    issued = {by_rank[s.number].pending for s in others if s.number in by_rank}
    if {s.activity.kind for s in others} != {"backward"} or len(issued) != 1:
        return ""
    few = issued.pop()
    op = ""
    for s in odd:
        calls = list(seen.world.collectives(s.number, one.node.group))
        here = calls[-1] if calls else None
        ends = [n for n, call in enumerate(calls) if here is not None and kind(call) == kind(here)]
        rounds = [after - before for before, after in pairwise(ends)]
        if here is None or len(rounds) < 3 or {n - few for n in rounds[-3:-1]} != {rounds[-1]}:
            return ""
        op = here.call.op
    which = f"{few} operations" if few > 1 else "one operation"
    return (
        f"{name_ranks(odd).capitalize()} issued {which} less before {op} than the last two "
        f"times, as many as {name_ranks(others)} {'have' if len(others) > 1 else 'has'} "
        f"issued in this backward: "
        f"{'their' if len(odd) > 1 else 'its'} backward reduced none of these gradients, as where "
        "parameters are not used in a step"
    )


def written_before(rank: Rank, since: float | None) -> bool:
    """Whether all that is known of a rank's recorder is a file from before the hang."""
    said = rank.recorder
    return said is not None and said.source == "file" and since is not None and said.at < since - 5


def of_hang(rank: Rank, since: float | None) -> Rank:
    """Return a rank without a recorder that was written before the hang."""
    return replace(rank, recorder=None) if written_before(rank, since) else rank
