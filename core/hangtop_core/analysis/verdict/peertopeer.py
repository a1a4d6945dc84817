"""Ranks in send and recv: those that cannot meet, and chains of which the head is elsewhere."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hangtop_core.analysis.verdict.base import Hit, Rule, Subject, alike, besides
from hangtop_core.analysis.verdict.branches import branch
from hangtop_core.analysis.verdict.evidence import common_facts
from hangtop_core.analysis.verdict.handles import made, made_at
from hangtop_core.analysis.verdict.naming import name_classes, name_ranks, name_waiters
from hangtop_core.analysis.verdict.needs import OPEN, More
from hangtop_core.analysis.verdict.p2pwaits import SOCKET, told_as, told_by, unread, ways
from hangtop_core.analysis.verdict.sentences import does, is_are, several, who
from hangtop_core.analysis.verdict.steps import LENGTHS, ORDER, dump_step, trace_steps
from hangtop_core.stacks.kinds import PEER_TO_PEER
from hangtop_core.text.commands import Advice
from hangtop_core.text.rank_sets import rank_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.analysis.verdict.p2pwaits import Knot

ABSENT = frozenset({"sleep", "waiting", "inline-data"})
"""What keeps a rank outside communication where nothing says more of it."""
_OTHER = {"send": "recv", "recv": "send"}
_PEER = re.compile(r"\b(?:dst|src)\s*=\s*(\d+)\b")
"""The other end of a send or recv, where the line gives it as a number."""


def heads(case: Case) -> tuple[Subject, ...]:
    """Ranks in another operation, where most wait in send or recv: what they wait for is theirs."""
    told = case.suspects or case.by_recorders is not None or case.knot
    if case.chain is not None and not told:
        return case.chain.subjects
    passing = case.passing
    if told or case.seats or len(passing) <= max(len(case.waiters) - len(passing), 1):
        return ()
    others = tuple(besides(case.waiters, passing))
    known = ways(case, passing)
    if len(known) < len(passing):
        return others
    peers = {way.peer for way in known.values()}
    return tuple(s for s in others if s.number in peers)


def _chain(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    found = heads(case)
    if not found:
        return
    if case.chain is not None:
        yield _linked(case, case.chain)
        return
    passing = case.passing
    handle = next((text for s in passing if (text := made_at(s))), "")
    calls = {"sends and receives" + handle if made(s) else s.activity.op or s.activity.kind
             for s in passing}  # fmt: skip
    first = found[0].activity
    yield Hit(
        subjects=found,
        explained=case.waiters,
        summary=(
            f"{name_ranks(passing)} {is_are(passing, 'waits', 'wait')} in "
            f"{' or '.join(sorted(calls))}, one for another "
            f"{case.lasting(case.progress.since)}, and {who(found)} {is_are(found, 'is', 'are')} "
            f"elsewhere: {is_are(found, 'it', 'they')} {several(first.text, found)} at {first.at}. "
            f"A send or recv of {is_are(found, 'it', 'theirs')} is lacking, or one is too many"
            f"{_or_among(case, passing)}{branch(case, found, passing)}"
        ),
        evidence=common_facts(case, found),
        steps=(
            Advice(
                f"compare how often {name_ranks(found)} and {is_are(found, 'its', 'their')} "
                f"neighbours send and receive before {first.at}"
            ),
            *trace_steps(found[0]),
        ),
    )


def _or_among(case: Case, passing: Sequence[Subject]) -> str:
    """That some may wait for each other, where it is not known for whom each of them waits."""
    if len(passing) < 2 or len(ways(case, passing)) == len(passing):
        return ""
    return f"; or some of {name_ranks(passing)} wait for each other: for whom is not known"


def _outside(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    """Ranks outside communication, for whom chains of sends and receives wait."""
    passing = case.passing
    outside = [s for s in left if s.activity.kind in ABSENT]
    if not outside or not passing or len(passing) < len(case.waiters):
        return
    known = {number: way for number, way in ways(case, passing).items() if way.peer != number}
    peers = {way.peer for way in known.values()}
    for group in alike(outside, lambda s: (s.activity.site, s.activity.text)):
        found = tuple(s for s in group if s.number in peers)
        if known and not found:
            continue  # they wait for somebody else
        found = found if len(known) == len(passing) else group
        numbers = {s.number for s in found}
        last = [s for s in passing if s.number in known and known[s.number].peer in numbers]
        rest = [s for s in besides(passing, last) if s.number in known]
        shown = [f"{rank_name(s.number)} ({known[s.number].name})" for s in last[:4]]
        said = f": {' and '.join(shown)} for {is_are(found, 'it', 'one of these')}" if last else ""
        behind = [f"{rank_name(s.number)} for {rank_name(known[s.number].peer)}" for s in rest[:4]]
        said += f"; behind {is_are(last, 'it', 'them')} {', '.join(behind)}" if behind else ""
        waiting = case.victims_clause(())
        activity = found[0].activity
        yield Hit(
            subjects=found,
            explained=(*besides(group, found), *case.waiters),
            summary=(
                f"{who(found)} {is_are(found, 'is', 'are')} outside communication, and others wait "
                f"for {is_are(found, 'its', 'their')} part of a send or recv: "
                f"{is_are(found, 'it', 'they')} {does(found)} at {activity.at} "
                f"{case.since(found[0])}".rstrip()
                + f". {waiting[:1].upper()}{waiting[1:]}{said}"
            ),
            evidence=(
                *told_as(known[s.number].name for s in (*last, *rest)),
                *common_facts(case, found),
            ),
            steps=(
                Advice(
                    f"look at what keeps {name_ranks(found)} at {activity.at}: all others only "
                    "wait in the chain behind that"
                ),
                *trace_steps(found[0]),
            ),
            needs=(*OPEN.get(activity.family or "", ()), *OUTSIDE.needs),
        )


def _linked(case: Case, chain: Knot) -> Hit:
    """Each of some waits for the next, and the last one for a rank in a collective."""
    found, first = chain.subjects, chain.subjects[0].activity
    numbers = {s.number for s in found}
    last = [s for s in chain.passing if chain.peers[s.number] in numbers]
    said = _for_whom(chain, last)
    rest = besides(chain.passing, last)
    after = _who_for_whom(chain, rest)
    others = case.victims_clause((*chain.passing, *found))
    long = case.lasting(case.progress.since)
    behind = f"; behind {is_are(last, 'it', 'them')} {after}" if after else ""
    calls = {chain.calls[s.number] if s.activity.peer is None else "" for s in last}
    other = _OTHER.get(calls.pop()) if len(calls) == 1 else None
    wait = f"{name_ranks(last)} {is_are(last, 'waits', 'wait')}"
    return Hit(
        subjects=found,
        explained=case.waiters,
        summary=(
            (
                f"{said} {long}".rstrip()
                if not rest
                else f"{name_ranks(chain.passing)} wait for one another in a chain {long}".rstrip()
                + f": {said}{behind}"
            )
            + f"; and {who(found)} {is_are(found, 'is', 'are')} "
            f"elsewhere: {is_are(found, 'it', 'they')} {several(first.text, found)} at {first.at}. "
            f"{is_are(found, 'It', 'They')} went on without "
            f"{f'the {other} that' if other else 'what'} {wait} for, or {wait} for one too many"
            + (f"; {others}" if others else "")
        ),
        evidence=(*told_by(case, chain), *common_facts(case, found)),
        steps=(
            Advice(
                f"compare how often {name_ranks([*last, *found])} send and receive before that: "
                "one may have left out a part, as of a micro-batch"
            ),
            *trace_steps(found[0]),
        ),
        confidence=0.85,
    )


def _for_whom(knot: Knot, some: Sequence[Subject]) -> str:
    """What the first of some do, and for which rank they wait there, with how that is known."""
    return "; ".join(
        f"{name_ranks([s])} {s.activity.text.rstrip(',')} at {s.activity.at}, for rank "
        f"{knot.peers[s.number]} ({knot.names[s.number]})"
        for s in some[:4]
    )


def _who_for_whom(knot: Knot, some: Sequence[Subject]) -> str:
    return ", ".join(
        f"{rank_name(s.number)} for {rank_name(knot.peers[s.number])}" for s in some[:4]
    )


def _p2p(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    waiting = tuple(s for s in case.waiters if s.activity.kind in PEER_TO_PEER)
    kinds = {s.activity.kind for s in waiting}
    if case.by_recorders is None and case.knot is not None:
        yield _tied(case, case.knot)
        return
    if case.suspects or len(waiting) < 2 or case.by_recorders is not None or case.seats:
        return  # or a rank that is not seen may be the one that they wait for
    if len(waiting) < len(case.waiters):
        yield from _beside_others(case)
        return
    if len(kinds) > 1:
        yield _mixed(case, waiting)
        return
    kind = waiting[0].activity.kind
    other = _OTHER[kind]
    alone = len(waiting) == 2 or len(case.waiting_classes) == 1
    yield Hit(
        subjects=waiting,
        summary=(
            f"{name_ranks(waiting)} all wait in {waiting[0].activity.op or kind} "
            f"{case.lasting(case.progress.since)}, and nobody is in the matching {other}"
            + ("" if alone else "; which of them wait for each other is not known")
        ),
        evidence=common_facts(case, waiting),
        steps=(ORDER,),
    )


def _tied(case: Case, knot: Knot) -> Hit:
    """Some wait for one another in a circle, and all others for these."""
    some = knot.subjects
    rest = besides(knot.passing, some)
    said = _for_whom(knot, some)
    more = f"; and so on, {len(some)} in all" if len(some) > 4 else ""
    after = _who_for_whom(knot, rest)
    calls = {s.activity.kind for s in case.waiters if s.activity.kind in PEER_TO_PEER}
    calls = calls if all(s.activity.kind in calls for s in some) else set()
    lacking = f", and nobody is in a {_OTHER[min(calls)]}" if calls in ({"send"}, {"recv"}) else ""
    streams = all(knot.names[s.number] == SOCKET for s in some)
    lacking = ", and nothing is on its way there" if streams else lacking
    circles = knot.circles
    meets = all(len(one) == 2 and len({knot.calls[s.number] for s in one}) == 2 for one in circles)
    if meets:
        lacking = ", which may be of other groups or tags, or not get through"
    others = case.victims_clause(knot.passing)
    return Hit(
        subjects=some,
        explained=case.waiters,
        summary=(
            f"{_around(circles)} {case.lasting(case.progress.since)}: {said}{more}{lacking}"
            + (f"; behind them {after}" if after else "")
            + (f"; {others}" if others else "")
            + unread(case, knot)
        ),
        evidence=(
            *told_by(case, knot),
            *common_facts(case, some),
        ),
        steps=(
            *((LENGTHS,) if streams else ()),
            Advice(
                f"compare how often {name_ranks(some)} send and receive before that, and in which "
                f"order{_tags(some)}: one may have left out a part, as of a micro-batch"
            ),
            *(() if streams else (ORDER,)),
        ),
        confidence=0.65 if meets else None,
    )


def _around(circles: Sequence[Sequence[Subject]]) -> str:
    """`ranks 0-1 wait for each other, and so do ranks 2-3`."""
    first, *rest = map(name_ranks, circles)
    more = f", and so do {' and '.join(rest[:3])}" if rest else ""
    return f"{first} wait for each other{more}" + (f", {len(rest) + 1} circles" * (len(rest) > 3))


def unmet(case: Case) -> tuple[Subject, ...]:
    """Ranks in send and recv that cannot meet one another, where all others wait in one operation.

    Who has left out its part of a send would be elsewhere by itself; where call sites differ, or
    some send and some receive, those in send and recv have come to these out of step. A source or
    destination that stands in the line as a number, and is none of them, says whom they wait for.
    """
    if case.knot is not None and case.by_recorders is None:
        return case.knot.subjects
    passing = [s for s in case.waiters if s.activity.kind in PEER_TO_PEER]
    others = [s for s in case.waiters if s.activity.kind not in PEER_TO_PEER]
    told = case.suspects or case.by_recorders is not None or case.seats or heads(case)
    if told or len(passing) < 2 or len({(s.activity.kind, s.activity.site) for s in others}) != 1:
        return ()
    if len({s.activity.site for s in passing}) < 2:
        return ()
    numbers = {s.number for s in passing}
    sources = [s.activity.site.source or "" for s in passing if s.activity.site is not None]
    named = {int(found[1]) for source in sources if (found := _PEER.search(source))}
    return () if named - numbers else tuple(passing)


def _beside_others(case: Case) -> Iterator[Hit]:
    """Some are in send and recv that cannot meet, and the others wait for these in a collective."""
    passing = unmet(case)
    if not passing:
        return
    calls = {s.activity.kind for s in passing}
    said = "; ".join(
        name_waiters(members, text)
        for text, members in case.waiting_classes[:5]
        if members[0].activity.kind in PEER_TO_PEER
    )
    lacking = "no send meets its recv" if len(calls) > 1 else f"nobody is in a {_OTHER[min(calls)]}"
    rest = [s for s in case.waiters if s.activity.kind not in PEER_TO_PEER]
    yield Hit(
        subjects=passing,
        explained=case.waiters,
        summary=(
            f"{said}, and {lacking} {case.lasting(max(s.standing.since for s in passing))}".rstrip()
            + f"; {name_waiters(rest)}"
        ),
        evidence=common_facts(case, passing),
        steps=(
            Advice(
                "compare in which order, and with which tags, these ranks send and receive; "
                "batch_isend_irecv lets both go at once"
            ),
            dump_step(passing[0], "--locals"),
        ),
        confidence=0.7,
    )


def _mixed(case: Case, waiting: Sequence[Subject]) -> Hit:
    """Some send and some receive, and none of it meets: stacks do not tell to and from whom."""
    said = name_classes(case.waiting_classes)
    return Hit(
        subjects=tuple(waiting),
        summary=(
            f"{name_ranks(waiting)} wait in send and recv for one another "
            f"{case.lasting(case.progress.since)}, and no send meets its recv: {said}"
        ),
        evidence=common_facts(case, waiting),
        steps=(
            Advice(
                f"compare how often, in which order{_tags(waiting)}, neighbours send and "
                "receive in that phase"
            ),
            dump_step(waiting[0], "--locals"),
        ),
        confidence=0.65,
    )


def _tags(waiting: Sequence[Subject]) -> str:
    """` and with which tags`, where a line that was quoted gives one."""
    sites = [s.activity.site for s in waiting]
    tagged = any("tag" in (one.source or "") for one in sites if one is not None)
    return " and with which tags" if tagged else ""


P2P = Rule(
    cause="p2p-deadlock",
    title="All ranks send or receive, and nothing meets",
    seen="Ranks wait for one another in a circle, as what torch's `send` and `recv` were given, "
    "the lines that call them or the names of their functions have it (confidence 0.65 where one "
    "of two sends and the other one receives), or as they read from connections of their own, of "
    "which both ends are known and on which nothing is on its way. Or all that wait are in send, "
    "or all in recv, and nobody is outside communication; with less confidence, some in send and "
    "some in recv. Or some are in sends and receives from different lines that cannot meet, and "
    "all others wait in one operation (confidence 0.70).",
    excluded="A rank is outside communication: it is the head of the chain. Without a circle: a "
    "rank was not seen, and may be the one that they wait for.",
    confidence=0.85,
    next_steps=("Order send and recv by rank", "Use batch_isend_irecv"),
    find=_p2p,
    needs=(More("recorder", "which send or receive has no other end"),),
)
OUTSIDE = Rule(
    cause="p2p-chain",
    title="Ranks wait for sends in a chain, and its head is outside communication",
    seen="All that wait are in send or recv, or on handles that isend, irecv or batch_isend_irecv "
    "gave in that class or file; this rank sleeps or waits in user code that is none of the known "
    "blocking calls. Where that is known for whom they wait, one of them "
    "waits for this rank.",
    excluded="Any of the causes above explains where the rank is. Somebody waits in a collective: "
    "`missing-collective`.",
    confidence=0.9,
    next_steps=("Look at the stack of that rank",),
    find=_outside,
    needs=(More("recorder", "whether it has issued what the others wait for"),),
)
CHAIN = Rule(
    cause="p2p-chain",
    title="Ranks wait for sends in a chain, and its head is in another operation",
    seen="More than half of the ranks wait in send or recv, or on handles that isend, irecv or "
    "batch_isend_irecv gave in that class or file, and the others in something else. Or, "
    "as what torch was given, the lines, the names of their functions or the other ends of "
    "connections of their own have it, each waits "
    "for the next one, and the last one for a rank in a collective (confidence 0.85).",
    excluded="A rank is outside communication: it is the head. The recorders of all were read.",
    confidence=0.75,
    next_steps=("Compare how often neighbours send and receive",),
    find=_chain,
    needs=(More("recorder", "which operation it has issued more or less than the others"),),
)
