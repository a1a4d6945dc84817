"""Causes between nodes: what a rank sends does not get through."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.analysis.verdict.base import START_OR_END, Hit, Rule
from hangtop_core.analysis.verdict.evidence import SHOWN, fact
from hangtop_core.analysis.verdict.naming import name_ranks
from hangtop_core.analysis.verdict.needs import More
from hangtop_core.analysis.verdict.sentences import is_are, sentence, who
from hangtop_core.analysis.verdict.steps import as_host, on_node
from hangtop_core.analysis.verdict.storehost import in_store, tcp_sockets
from hangtop_core.logs.meaning.known import LOCAL_INTERFACE
from hangtop_core.logs.meaning.steps import STEPS
from hangtop_core.model.node.places import Places
from hangtop_core.model.node.states import OBSERVED
from hangtop_core.text.addresses import host_of, is_loopback, stays_here
from hangtop_core.text.clean import clean, plural
from hangtop_core.text.commands import Advice

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence

    from hangtop_core.analysis.verdict.base import Subject
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.diagnosis import Evidence
    from hangtop_core.model.meters import Stalled
    from hangtop_core.text.commands import Step

_LOCAL_ONLY = re.compile(LOCAL_INTERFACE)
SURE = 4
"""Attempts in a row without an answer, 3 s by the kernel's pauses; a lossy link recovers before."""


class _Broken(NamedTuple):
    subject: Subject
    one: Stalled
    there: str
    """Node of the other end."""


def _peer_dead(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    broken = list(_broken(case))
    if not broken:
        return
    met: dict[str, set[str]] = defaultdict(set)
    for rank, _, there in broken:
        met[rank.rank.node].add(there)
        met[there].add(rank.rank.node)
    # Who is at odds with most is what they have in common; of two nodes it may be either.
    most = max(map(len, met.values()))
    nodes = sorted(node for node, others in met.items() if len(others) == most)
    ends = {id(each.subject) for each in broken}
    alone = len(nodes) == 1
    blamed = tuple(s for s in case.waiters if (s.rank.node == nodes[0] if alone else id(s) in ends))
    first = max(broken, key=lambda each: each.one.retransmits)
    pairs = Counter(frozenset((b.subject.rank.node, b.there)) for b in broken)
    between = " and ".join(sorted((first.subject.rank.node, first.there)))
    more = f", and between {plural(len(pairs) - 1, 'more pair')} of nodes" if len(pairs) > 1 else ""
    common = f", all of them with {nodes[0]}" if alone and len(pairs) > 1 else ""
    upto = "up to " if len({each.one.retransmits for each in broken}) > 1 else ""
    senders = name_ranks({each.subject.number for each in broken})
    send = "sends" if len(ends) == 1 else "send"
    to_store = all(_of_store(each) for each in broken)
    what = f"What goes to and from the store at {_store(first)} by TCP" if to_store else "TCP"
    over, others = _others(case, broken, to_store)
    yield Hit(
        subjects=blamed,
        summary=sentence(
            case,
            f"{what}{over} between {clean(between, 200)} does not get through"
            f"{more}{clean(common, 120)}: what {senders} {send} is not acknowledged, and was sent "
            f"again {upto}{first.one.retransmits} times in a row{others}. The nodes answer "
            "hangtop, so it is the way between them",
        ),
        evidence=tuple(_facts(broken)),
        steps=tuple(_steps(first)),
        confidence=None if alone or len(met) == 2 else 0.7,
    )


def _broken(case: Case) -> Iterator[_Broken]:
    """Connections of waiting ranks to other nodes of the job, both of which are observed."""
    if not case.calling:
        return
    places = Places(case.snapshot.nodes)
    names = {s.rank.node for s in case.subjects}
    here = {name for name in names if name in case.nodes and case.nodes[name].state in OBSERVED}
    for subject in case.calling:
        node = subject.rank.node
        for one in subject.rank.process.stalled if subject.waits else ():
            host = host_of(one.remote)
            there = places.node_of(host, node)
            sent = one.state == "ESTABLISHED" and one.retransmits >= SURE
            if sent and there in here and node in here and there != node:
                yield _Broken(subject, one, there)


def _of_store(broken: _Broken) -> bool:
    """Whether a connection is one to the store, of either end."""
    one, process = broken.one, broken.subject.rank.process
    return process.meets_at(one.remote) or process.meets_at(one.local)


def _store(broken: _Broken) -> str:
    """Address and port of the store that a connection leads to, or comes from."""
    one = broken.one
    return clean(one.remote if broken.subject.rank.process.meets_at(one.remote) else one.local, 60)


def _others(case: Case, broken: Sequence[_Broken], to_store: bool) -> tuple[str, str]:
    """` over 10.9.0.1 and 10.9.0.2`, and `; 4 other connections between them are not stuck`.

    Of two nodes: by which addresses, where these have several. What else there is between them:
    beside connections to the store all others, else those over other addresses.
    """
    pair = {broken[0].subject.rank.node, broken[0].there}
    if any({each.subject.rank.node, each.there} != pair for each in broken):
        return "", ""
    dead = _hosts(end for each in broken for end in (each.one.local, each.one.remote))
    several = all(
        len([one for one in case.nodes[name].addresses if not is_loopback(one)]) > 1
        for name in pair
    )
    over = f" over {' and '.join(dead[:SHOWN])}" if several and not to_store else ""
    stuck = {(one.local, one.remote) for s in case.calling for one in s.rank.process.stalled}
    open_, places = set[tuple[str, str]](), Places(case.snapshot.nodes)
    for subject in case.subjects:
        node = subject.rank.node
        for socket in tcp_sockets(subject) if node in pair else ():
            if socket.state != "ESTABLISHED":
                continue
            there = places.node_of(host_of(socket.remote), node)
            if there in pair and there != node:
                waits = socket.retransmits or socket.send_queue
                (stuck if waits else open_).add((socket.local, socket.remote))
    stuck |= {(remote, local) for local, remote in stuck}
    rest = {(min(each), max(each)) for each in open_ - stuck}
    rest = {each for each in rest if to_store or not set(_hosts(each)) & set(dead)}
    if not rest:
        return over, ""
    by = (
        f", over {' and '.join(_hosts(end for each in rest for end in each)[:SHOWN])},"
        if over
        else ""
    )
    told = f"; {plural(len(rest), 'other connection')} of these ranks between them{by} "
    return over, clean(told + ("is not stuck" if len(rest) == 1 else "are not stuck"), 300)


def _hosts(ends: Iterable[str]) -> list[str]:
    return sorted({host_of(end) for end in ends})


def sent_in_vain(case: Case, away: Container[str]) -> tuple[Evidence, ...]:
    """Connections of waiting ranks on which nothing is acknowledged by a node that is away.

    Of one that has never answered no address is known: it is none of those that do answer.
    """
    here = [node for node in case.seen_nodes if node.name not in away]
    known = {address for node in here for address in node.addresses}
    if not case.calling or not all(node.addresses for node in here):
        return ()
    found = [
        (subject, one)
        for subject in case.heard(case.calling)
        for one in (subject.rank.process.stalled if subject.waits else ())
        if one.state == "ESTABLISHED" and one.retransmits >= SURE
        if (host := host_of(one.remote)) not in known and not is_loopback(host)
    ]
    found.sort(key=lambda each: (-each[1].retransmits, each[0].number))
    return tuple(
        fact(
            "network",
            s.number,
            f"{sent_again(one)}; no node that answers has that address",
        )
        for s, one in found[:SHOWN]
    )


def leads_to(case: Case, name: str) -> tuple[Evidence, ...]:
    """Connections of waiting ranks to a node, but for the store: a rank is there, or was."""
    places, found = Places(case.snapshot.nodes), []
    for s in case.heard(case.calling):
        process = s.rank.process
        for one in process.stalled if s.waits else ():
            there = places.node_of(host_of(one.remote), s.rank.node)
            if there == name and one.state == "ESTABLISHED" and not process.meets_at(one.remote):
                found.append(fact("network", s.number, sent_again(one, f"on {name}")))
    return tuple(found[:SHOWN])


def sent_again(one: Stalled, there: str = "") -> str:
    """A connection on which nothing is acknowledged, and where its other end is."""
    at = f" {there}" if there else ""
    return (
        f"{one.local} -> {one.remote}{at}: {one.unacknowledged} bytes not acknowledged, sent again "
        f"{one.retransmits} times in a row"
    )


def _facts(broken: Sequence[_Broken]) -> Iterator[Evidence]:
    ordered = sorted(broken, key=lambda each: (-each.one.retransmits, each.subject.number))
    for subject, one, there in ordered[:SHOWN]:
        yield fact("network", subject.number, sent_again(one, f"on {there}"))
    if len(ordered) > SHOWN:
        those = name_ranks({each.subject.number for each in ordered[SHOWN:]})
        count = plural(len(ordered) - SHOWN, "more connection")
        yield fact("network", None, f"{count} of {those} alike")


def _steps(first: _Broken) -> Iterator[Step]:
    node = first.subject.rank.node
    host = as_host(host_of(first.one.remote))
    if host is not None:
        # With 28 bytes of headers these fill a packet of Ethernet, and of jumbo frames.
        yield on_node(node, "ping", "-c3", "-W2", host, why="is there a way at all")
        yield on_node(
            node,
            "ping",
            "-c3",
            "-W2",
            "-M",
            "do",
            "-s",
            "1472",
            host,
            why="or for small packets only",
        )
        yield on_node(node, "ss", "-tnoi", "dst", host, why="is it all connections or some")
    yield Advice(
        "look at firewalls on both nodes (iptables -S, nft list ruleset), routes, bonds, cables"
    )
    yield Advice("if the nodes have several networks: NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME")


def _wrong_interface(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    joining = [s for s in case.waiters if s.activity.kind in ("init", "new-group")]
    if not joining:
        return
    nodes = {s.rank.node for s in case.subjects} | {s.node for s in case.seats if s.node}
    several = len(nodes) > 1 or (case.seats and len(case.nodes) > 1)
    if not several:
        return
    found = {id(s): why for s in case.subjects if (why := _leads_nowhere(s))}
    no_way = "leads to no other node" if found else "others do not reach"
    found = found or _not_reached(case, joining)
    blamed = tuple(s for s in case.subjects if id(s) in found)
    if not blamed:
        return
    first = blamed[0]
    yield Hit(
        subjects=blamed,
        explained=case.subjects,
        summary=sentence(
            case,
            f"{who(blamed)} {is_are(blamed, 'meets', 'meet')} the others over an interface that "
            f"{no_way}: {found[id(first)]}",
            blamed=blamed,
        ),
        evidence=tuple(
            fact("network", s.number, f"on {s.rank.node}: {found[id(s)]}") for s in blamed[:SHOWN]
        ),
        steps=(
            on_node(
                first.rank.node, "ip", "-br", "address", why="see what leads to the other nodes"
            ),
            *STEPS["wrong-interface"],
        ),
        decisive=any(_unanswered(case)),
    )


def _unanswered(case: Case) -> Iterator[tuple[Subject, Stalled]]:
    """What waiting ranks try to connect to in vain, but for the store, which is another way."""
    for subject in case.calling:
        process = subject.rank.process
        waits = subject.waits and not in_store(subject)
        for one in process.stalled if waits else ():
            if one.state == "SYN_SENT" and not process.meets_at(one.remote):
                yield subject, one


def _not_reached(case: Case, joining: Sequence[Subject]) -> dict[int, str]:
    """Why ranks cannot be reached, by id: not at the address of their node that is near to others.

    That is the one by which they are connected to the store, or one in the network of who tries.
    Where it is tried from another network than that, both nodes have the other one, too.
    """
    places, used = Places(case.snapshot.nodes), _to_stores(case)
    found: dict[int, str] = {}
    for subject, one in _unanswered(case):
        here, host = subject.rank.node, host_of(one.remote)
        there, local = places.node_of(host, here), host_of(one.local)
        if there is None or there == here:
            continue
        known = used[there] if local in used[here] else set()
        how = "they reach the store from"
        if not known and network(host) != network(local):
            addresses = case.nodes[there].addresses if there in case.nodes else ()
            known = {each for each in addresses if network(each) == network(local)}
            how = "their node is in the network of who tries as"
        if known and host not in known:
            why = f"nothing answers at {one.remote} (SYN_SENT from {one.local}), but {how} "
            found |= {id(s): why + min(known) for s in joining if s.rank.node == there}
    return found


def network(address: str) -> str:
    """The first three numbers of an IPv4 address: whatever its mask, those are one network."""
    return address.rpartition(".")[0] or address


def _to_stores(case: Case) -> dict[str, set[str]]:
    """The addresses of each node by which its ranks are connected to the store."""
    found: dict[str, set[str]] = defaultdict(set)
    for subject in case.subjects:
        for one in tcp_sockets(subject):
            ends = one.local, one.remote
            if one.state == "ESTABLISHED" and any(map(subject.rank.process.meets_at, ends)):
                found[subject.rank.node].add(host_of(one.local))
    return found


def _leads_nowhere(subject: Subject) -> str:
    """Why the interface of a rank leads to no other node; empty where it may."""
    env = subject.rank.process.env
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        told = env.get(name, "")
        chosen = [one.strip() for one in told.removeprefix("=").split(",") if one.strip()]
        if chosen and not told.startswith("^") and all(map(_LOCAL_ONLY.fullmatch, chosen)):
            return f"{name} is {clean(told, 60)}"
    listening = [one.local for one in tcp_sockets(subject) if one.state == "LISTEN"]
    own = [one for one in listening if not subject.rank.process.meets_at(one)]
    if own and all(map(stays_here, own)):
        return f"listening on {own[0]} only; the name of the node may be 127.0.1.1 in /etc/hosts"
    return ""


WRONG_INTERFACE = Rule(
    cause="wrong-interface",
    title="A rank meets the others over an interface of its own node",
    seen="In a job of several nodes ranks wait in init_process_group or new_group, and a rank has "
    "GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME set to lo, docker0, virbr0 or the like, or listens "
    "on 127.0.0.0/8 only: that is so where /etc/hosts gives the name of the node as 127.0.1.1. Or "
    "nothing answers (SYN_SENT) at an address of its node that is not the one by which it is "
    "connected to the store, and who tries is on the network of the store.",
    excluded="The ranks have met. The job runs on one node.",
    confidence=0.92,
    next_steps=("Name the interface that leads to the other nodes: GLOO_SOCKET_IFNAME=eth0",),
    find=_wrong_interface,
    states=START_OR_END,
    needs=(More("descriptors", "on which address it listens, and to whom it is connected"),),
)
PEER_DEAD = Rule(
    cause="tcp-peer-dead",
    title="What a rank sends to another node is not acknowledged",
    seen=f"A waiting rank has a TCP connection to another node of the job on which the kernel has "
    f"sent the same {SURE} times in a row or more without an answer; both nodes answer hangtop. "
    "Told is where all of them are of the store, and how many others between them are not stuck. "
    "Blamed are the ranks of the node that most of such connections lead to; of two nodes those "
    "ranks whose connections they are, which may be of one node alone.",
    excluded="A process that is stopped or does not read: its kernel goes on acknowledging. A "
    "node that has gone away: `node-unreachable`.",
    confidence=0.9,
    next_steps=("ping with small and with full packets between the nodes", "Look at firewalls"),
    find=_peer_dead,
    needs=(More("descriptors", "whether other connections between these nodes get through"),),
)
