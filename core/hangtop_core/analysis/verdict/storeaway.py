"""Ranks whose first connection, to the store, nobody answers: down, blocked, or a wrong address."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.verdict.base import AT_START, Hit, Rule, Subject
from hangtop_core.analysis.verdict.evidence import SHOWN, fact
from hangtop_core.analysis.verdict.meeting import Tried, connecting, nettest, socket_text, try_again
from hangtop_core.analysis.verdict.naming import name_ranks
from hangtop_core.analysis.verdict.needs import More
from hangtop_core.analysis.verdict.network import network
from hangtop_core.analysis.verdict.sentences import is_are, sentence
from hangtop_core.analysis.verdict.steps import as_host, on_node
from hangtop_core.analysis.verdict.storehost import hosts_store, in_store, tcp_sockets
from hangtop_core.analysis.verdict.storenames import resolve
from hangtop_core.analysis.verdict.storestart import OUT_OF_REACH
from hangtop_core.model.meters import Stalled
from hangtop_core.text.addresses import host_of, is_address, is_loopback, port_of
from hangtop_core.text.clean import clean
from hangtop_core.text.commands import Advice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.text.commands import Command


_PAUSE_S = 15.0
"""Seconds within which who tries again and again has done so."""


def no_answer(case: Case) -> list[Tried]:
    """Connections to the store that ranks try to make and nobody answers."""
    tried = [
        each
        for subject in case.calling
        if subject.activity.kind in ("init", "importing", "unknown", "waiting", "sleep")
        for each in connecting(subject)
        if subject.rank.process.meets_at(each.one.remote) or in_store(subject)
    ]
    known = {id(each.subject) for each in tried}
    # Where the network says soon that there is no such host, no attempt lasts for long.
    tries = [s for s in case.joining if in_store(s) and id(s) not in known and not hosts_store(s)]
    return tried + [each for s in tries for each in _one_moment(s)]


def _one_moment(subject: Subject) -> Iterator[Tried]:
    """The same, as its descriptors had it."""
    for one in tcp_sockets(subject):
        if one.state == "SYN_SENT":
            yield Tried(subject, Stalled(one.local, one.remote, 0, one.retransmits, one.state))


def _no_store(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    tried = no_answer(case)
    if not tried:
        return
    first = tried[0]
    subjects = _with_others(case, tried)
    address = clean(first.one.remote, 200)
    other = _other_address(case, first)
    reached = "" if other else _reached(case, tried)
    why = other or reached or "it is down, or a firewall drops what is sent there"
    yield Hit(
        subjects=subjects,
        summary=sentence(
            case,
            f"{name_ranks(subjects)} cannot reach the store at {address}: nothing answers "
            f"(SYN_SENT); {why}",
            blamed=subjects,
        ),
        evidence=tuple(
            fact("network", each.subject.number, socket_text(each.one)) for each in tried[:SHOWN]
        ),
        steps=(
            *(resolve(first.subject) if other else ()),
            *try_again(first),
            *(_route(first) if reached else ()),
            Advice(
                "compare MASTER_ADDR and MASTER_PORT with where rank 0, or torchrun, really runs"
            ),
            nettest(case),
        ),
    )


def _reached(case: Case, tried: Sequence[Tried]) -> str:
    """That others are connected there, and from which address these try; empty where none are.

    Or that a rank on the node which has that address has a store.
    """
    first, ids = tried[0], {id(each.subject) for each in tried}
    there = [
        s
        for s in case.live
        if id(s) not in ids
        if any(
            one.state == "ESTABLISHED" and one.remote == first.one.remote for one in tcp_sockets(s)
        )
    ]
    told = f"{name_ranks(there)} {is_are(there, 'is', 'are')} connected to it" if there else ""
    owners = {name for name, node in case.nodes.items() if first.host in node.addresses}
    hosts = [s for s in case.live if hosts_store(s) and {s.rank.node} == owners]
    if hosts and not told:
        told = f"{name_ranks(hosts)} {is_are(hosts, 'has', 'have')} a store on {owners.pop()}"
    if not told or is_loopback(first.host):
        return ""
    node, local = first.subject.rank.node, host_of(first.one.local)
    addresses = case.nodes[node].addresses if node in case.nodes else ()
    near = [one for one in addresses if one != local and network(one) == network(first.host)]
    also = f", although {node} also has {near[0]}" if near else ""
    also = also if network(local) != network(first.host) else ""
    told += f", so most likely a firewall drops what is sent there from {node}, or the way there "
    return clean(f"{told}is wrong: it is tried from {local}{also}", 400)


def _route(one: Tried) -> tuple[Command, ...]:
    host = as_host(one.host)
    node = one.subject.rank.node
    return (on_node(node, "ip", "route", "get", host, why="by which way it goes"),) if host else ()


def _with_others(case: Case, tried: Sequence[Tried]) -> tuple[Subject, ...]:
    """Who tries, and who is between two attempts beside one of them, or was not looked at."""
    known = {id(each.subject): each.subject for each in tried}
    beside = {s.rank.node for s in known.values()}
    near = [s for s in case.joining if s.rank.node in beside and in_store(s)]
    for s in near:
        # Who is connected and waits for an answer does not wake up.
        wakes = (s.rank.moved_at or 0.0) > case.at - _PAUSE_S
        if wakes and not (hosts_store(s) or _connected(s)):
            known.setdefault(id(s), s)
    return tuple(sorted(known.values(), key=lambda s: s.number))


def _connected(subject: Subject) -> bool:
    return any(one.state == "ESTABLISHED" for one in tcp_sockets(subject))


def _other_address(case: Case, one: Tried) -> str:
    """That the address they try is not that of the node on which a rank has the store; or empty."""
    name = one.subject.rank.process.env.get("MASTER_ADDR", "")
    has = [s for s in case.live if hosts_store(s)]
    if len(has) != 1 or is_loopback(one.host) or one.subject.rank.node == has[0].rank.node:
        return ""
    host, node = has[0], case.nodes.get(has[0].rank.node)
    own = [each for each in (node.addresses if node is not None else ()) if not is_loopback(each)]
    if not own or one.host in own:
        return ""
    others = {
        host_of(each.remote)
        for s in case.live
        for each in tcp_sockets(s)
        if each.state == "ESTABLISHED"
        if port_of(each.remote) == one.port and id(s) != id(one.subject)
    } & set(own)
    at = f"connected to {min(others)}" if others else ", ".join(own[:2])
    told = (
        f"{name_ranks([host])} has it on {host.rank.node} ({at}), which does not have that address"
    )
    if name and not is_address(name):
        there = one.subject.rank.node
        told += (
            f": on {there} the name {name} most likely means an old or wrong one (/etc/hosts, DNS)"
        )
    return clean(told, 400)


def known_who(case: Case) -> bool:
    """Whether it shows in the ranks themselves which of them cannot reach the store."""
    return bool(no_answer(case)) or any(OUT_OF_REACH.find(case, ()))


NO_STORE = Rule(
    cause="store-unreachable",
    title="Ranks cannot reach the store",
    seen="A rank has tried three times or more to connect to MASTER_PORT, and nobody answers "
    "(SYN_SENT), or it makes its store and did so when its descriptors were read; or its log says "
    "so. Where a rank of another node has the store, and that node does not have the address "
    "which is tried, that is told; and where others are connected to it, by which address it is "
    "tried.",
    excluded="It is connected.",
    confidence=0.9,
    next_steps=(
        "Connect from there to MASTER_ADDR and MASTER_PORT",
        "Look whether rank 0 runs there",
    ),
    find=_no_store,
    states=AT_START,
    needs=(More("descriptors", "to which address it tries to connect"),),
)
