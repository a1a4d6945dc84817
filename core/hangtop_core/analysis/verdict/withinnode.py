"""A cause within one node: what a rank sends to another one there does not get through."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.analysis.verdict.base import Hit, Rule
from hangtop_core.analysis.verdict.evidence import SHOWN, fact
from hangtop_core.analysis.verdict.naming import name_ranks
from hangtop_core.analysis.verdict.network import SURE, sent_again
from hangtop_core.analysis.verdict.sentences import sentence
from hangtop_core.analysis.verdict.steps import on_node
from hangtop_core.analysis.verdict.storehost import open_sockets
from hangtop_core.text.clean import clean, plural
from hangtop_core.text.rank_sets import rank_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.base import Subject
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model.descriptors import Socket
    from hangtop_core.model.meters import Stalled


class _Dropped(NamedTuple):
    subject: Subject
    one: Stalled
    peer: Subject
    """Who has the other end."""


def _dropped_here(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    stuck = list(_stuck(case))
    if not stuck:
        return
    ends = {id(s): s for subject, _, peer in stuck for s in (subject, peer)}
    # Who is at one end of all of them is what they have in common; of two ranks it may be either.
    common = [
        s for s in ends.values() if all(s is each.subject or s is each.peer for each in stuck)
    ]
    alone = common[0] if len(common) == 1 else None
    first = max(stuck, key=lambda each: each.one.retransmits)
    inside = ("nsenter", "-t", first.subject.pid, "-n")
    connections = {frozenset((each.one.local, each.one.remote)) for each in stuck}
    others = name_ranks({s.number for s in ends.values() if s is not alone})
    between = f"{name_ranks({alone.number})} and {others}" if alone is not None else others
    nodes = {s.rank.node for s in ends.values()}
    where = f"on {min(nodes)}" if len(nodes) == 1 else "within their nodes"
    senders = {each.subject.number for each in stuck}
    send = "sends" if len(senders) == 1 else "send"
    upto = "up to " if len({each.one.retransmits for each in stuck}) > 1 else ""
    all_of = (
        f"; {name_ranks({alone.number})} is at one end of all {len(connections)} connections"
        if alone is not None
        else f", on {plural(len(connections), 'connection')}"
        f"{': that does not tell which of the two it is' if len(ends) == 2 else ''}"
    )
    yield Hit(
        subjects=(alone,) if alone is not None else tuple(ends.values()),
        summary=sentence(
            case,
            f"TCP between {between} {clean(where, 120)} does not get through: what "
            f"{name_ranks(senders)} {send} is not acknowledged, and was tried again {upto}"
            f"{first.one.retransmits} times in a row{all_of}. What a program does not read its "
            "kernel acknowledges all the same, so it is dropped on the way, as by a firewall",
        ),
        evidence=tuple(
            fact("network", each.subject.number, sent_again(each.one, f"of {rank_name(peer)}"))
            for each in sorted(stuck, key=lambda each: -each.one.retransmits)[:SHOWN]
            for peer in (each.peer.number,)
        ),
        steps=(
            on_node(first.subject.rank.node, *inside, "ss", "-tnoi", why="see timers and queues"),
            on_node(first.subject.rank.node, *inside, "iptables", "-S", why="see what is dropped"),
            on_node(
                first.subject.rank.node,
                *inside,
                "nft",
                "list",
                "ruleset",
                why="the same of nftables",
            ),
        ),
        confidence=None if alone is not None or len(ends) == 2 else 0.7,
    )


def _stuck(case: Case) -> Iterator[_Dropped]:
    """Connections of waiting ranks to other ones of their node that wait, too."""
    if not case.calling:
        return
    some = [s for s in case.calling if s.waits and any(map(_is_sure, s.rank.process.stalled))]
    nodes = {s.rank.node for s in some}
    owners: dict[tuple[str, str, str], dict[int, Subject]] = defaultdict(dict)
    for subject in case.subjects if some else ():
        node = subject.rank.node
        if node in nodes:
            for end in (*subject.rank.process.stalled, *_connected(subject)):
                owners[node, end.local, end.remote][id(subject)] = subject
    for subject in some:
        for one in filter(_is_sure, subject.rank.process.stalled):
            there = list(owners.get((subject.rank.node, one.remote, one.local), {}).values())
            # Loopback addresses of two network namespaces may be the same: then it is not known.
            if len(there) == 1 and there[0] is not subject and there[0].waits:
                yield _Dropped(subject, one, there[0])


def _is_sure(one: Stalled) -> bool:
    return one.state == "ESTABLISHED" and one.retransmits >= SURE


def _connected(subject: Subject) -> list[Stalled | Socket]:
    sockets = (one.socket for one in open_sockets(subject))
    return [one for one in sockets if one is not None and one.state == "ESTABLISHED"]


DROPPED = Rule(
    cause="tcp-peer-dead",
    title="What a rank sends to another one of its node is not acknowledged",
    seen=f"A waiting rank has a TCP connection to another rank of its node that waits, too, on "
    f"which the kernel has sent the same, or has asked whether it may send, {SURE} times in a row "
    "or more without an answer. Blamed is the rank that is at one end of all of them; of two ranks "
    "both.",
    excluded="A process that is stopped or does not read: its kernel goes on acknowledging. The "
    "other end is of no rank of the job, or not known.",
    confidence=0.85,
    next_steps=("Look at firewalls (iptables -S, nft list ruleset) in the ranks' namespace",),
    find=_dropped_here,
    complete="the kernel's own count of attempts says that nothing is acknowledged",
)
