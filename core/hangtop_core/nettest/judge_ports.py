"""Findings on ports: which nodes cannot be reached, by which, and the meaning of the failure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hangtop_core.nettest import culprits
from hangtop_core.nettest.facts import Finding
from hangtop_core.text import node_sets as nodesets
from hangtop_core.text.clean import clean, plural
from hangtop_core.text.commands import Advice, Command, Sign

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hangtop_core.nettest.culprits import Culprit
    from hangtop_core.nettest.facts import Facts, Kind, Pair, Way
    from hangtop_core.text.commands import Step

MEANS = {
    "refused": "refused, although hangtop listens there: a firewall rejects it (REJECT)",
    "timed-out": "packets are dropped, as by a firewall (DROP) or a route into nowhere",
    "no-route": "no route, or a firewall says so (icmp-host-prohibited)",
    "reset": "the connection was reset once it was made: something between cuts it",
    "stranger": "something else answers there: another machine has the address, or a proxy",
    "stalled": "small packets pass, large ones do not: an MTU on the way is smaller than set",
    "lossy": "some packets arrive, others do not: a bad cable, port or switch, or a full link",
    "late": "all arrives, but no answer comes in time: the node is busy, or hangs",
    "no-address": "the address is gone from the node",
    "forbidden": "the node's own firewall forbids it to connect",
    "not-tried": "not tried: time was up",
}


_FIREWALLS = (
    *("iptables", "-S", Sign.THEN, "nft", "list", "ruleset"),
    *(Sign.THEN, "firewall-cmd", "--list-all"),
)
_CAUSES = {
    "stalled": "mtu-mismatch",
    "lossy": "packets-lost",
    "late": "node-slow",
    "stranger": "address-taken",
    "no-route": "no-route",
}


def of_ports(facts: Facts) -> Iterator[Finding]:
    """Yield failures on the chosen port, and on others."""
    by_kind = {kind: culprits.of_kind(facts, kind) for kind in ("chosen", "any")}
    both = {(*culprit.nodes, culprit.what) for culprit in by_kind["chosen"]} & {
        (*culprit.nodes, culprit.what) for culprit in by_kind["any"]
    }
    for culprit in by_kind["chosen"]:
        same = (*culprit.nodes, culprit.what) in both
        yield _finding(
            facts, culprit, "chosen", "its ports" if same else f"port {facts.port}", same
        )
    for culprit in by_kind["any"]:
        if (*culprit.nodes, culprit.what) not in both:
            yield _finding(facts, culprit, "any", "ports that are given as needed", False)


def _finding(facts: Facts, culprit: Culprit, kind: Kind, what: str, same: bool) -> Finding:
    pairs = set(culprit.pairs)  # a thousand nodes have a million pairs
    failures = [
        connection
        for connection in facts.ways
        if connection.kind == kind
        and not connection.ok
        and (connection.source, connection.target) in pairs
    ]
    cause = _cause(failures)
    return Finding(
        cause,
        "failure",
        _summary(facts, culprit, what, cause),
        culprit.nodes,
        culprit.pairs,
        tuple(_evidence(facts, culprit, failures, kind, same)),
        tuple(_steps(facts, culprit, failures, kind, cause)),
    )


def _cause(connections: Iterable[Way]) -> str:
    how = Counter(connection.how for connection in connections).most_common(1)[0][0]
    return _CAUSES.get(how, "port-blocked")


_PACKETS = {"mtu-mismatch": "large packets", "packets-lost": "packets"}
_LOST = {
    "into": "{packets} into {first} get lost",
    "from": "{packets} from {first} get lost",
    "pair": "{packets} from {first} to {last} get lost",
}
_SUMMARIES = {
    "some": "{failing} of {count} ways between nodes fail, most of them of {first}: {what}",
    "all": "no node reaches any other: {what} of {nodes}",
    "both": "{first} neither reaches the other nodes nor is reached: {what}",
    "into": "no other node reaches {first}: {what}",
    "from": "{first} reaches no other node: {what}",
}


def _summary(facts: Facts, culprit: Culprit, what: str, cause: str) -> str:
    return _summary_form(culprit, cause).format(
        what=what,
        packets=_PACKETS.get(cause),
        first=facts.at(culprit.nodes[0]),
        last=facts.at(culprit.nodes[-1]),
        nodes=nodesets.fold(culprit.nodes),
        failing=len(culprit.pairs),
        count=len(_pairs_of(facts.ways)),
    )


def _summary_form(culprit: Culprit, cause: str) -> str:
    if cause in _PACKETS and culprit.what in _LOST:
        return _LOST[culprit.what]
    if cause == "node-slow" and culprit.what in ("into", "pair"):
        return "{last} takes connections but answers too late"
    if culprit.what != "pair":
        return _SUMMARIES[culprit.what]
    if culprit.nodes[0] == culprit.nodes[1]:
        return "{first} does not reach its own address: {what}"
    if len(culprit.pairs) == 2:
        return "{first} and {last} do not reach each other: {what}"
    return "{first} does not reach {last}: {what}"


def _evidence(
    facts: Facts, culprit: Culprit, failures: list[Way], kind: Kind, same: bool
) -> Iterator[str]:
    yield from _failures(failures)
    pairs = set(culprit.pairs)
    working = [connection for connection in facts.ways if connection.ok]
    if not same and not pairs.isdisjoint(_pairs_of(working)):
        port = f"port {facts.port}" if kind == "any" else "a port that the kernel gave"
        yield f"the same ways work on {port}"
    fine = _pairs_of(connection for connection in working if connection.kind == kind) - pairs
    if fine:
        yield f"{plural(len(fine), 'other way', 'other ways')} between nodes work"


def _failures(connections: list[Way]) -> Iterator[str]:
    """Yield source and target nodes of each kind of failure, the most frequent first."""
    for how, _ in Counter(connection.how for connection in connections).most_common():
        alike = [connection for connection in connections if connection.how == how]
        took = max(connection.took for connection in alike)
        wait = f"no answer in {took:.1f} s: " if how == "timed-out" else ""
        yield f"{_named(_pairs_of(alike))}: {wait}{MEANS.get(how, clean(how))}"


def _pairs_of(connections: Iterable[Way]) -> set[Pair]:
    return {(connection.source, connection.target) for connection in connections}


def _steps(
    facts: Facts, culprit: Culprit, failures: list[Way], kind: Kind, cause: str
) -> Iterator[Step]:
    failure = failures[0]
    target = facts.spots[failure.target].address
    if cause == "mtu-mismatch":
        ping = ("ping", "-M", "do", "-s", 1472, target)
        yield Command("", ping, f"on {failure.source} (1472 fits an MTU of 1500)")
        yield Advice("give interfaces and switches on the way one MTU")
        return
    if cause == "packets-lost":
        for node in (failure.source, failure.target):
            show = ("ip", "-s", "link", "show", "dev", facts.spots[node].interface)
            yield Command("", show, f"on {node} (errors, dropped)")
        yield Command("", ("ping", "-c", 100, "-i", "0.01", target), f"on {failure.source}")
        return
    if cause == "node-slow":
        yield Command("", ("uptime", Sign.THEN, "vmstat", 1, 5), f"on {failure.target}")
        return
    where = culprit.nodes[0] if culprit.what != "pair" else failure.target
    yield Command("", _FIREWALLS, f"on {where}")
    if kind == "any":
        look = facts.looked.get(failure.target)
        span = "-".join(map(str, look.ephemeral)) if look is not None else ""
        yield Advice(
            f"let all TCP between these nodes pass, or at least {span or 'the ephemeral ports'}: "
            "gloo and NCCL take ports there"
        )
    else:
        pairs = set(culprit.pairs)
        works = any(w.ok and w.kind == "any" and (w.source, w.target) in pairs for w in facts.ways)
        more = ", or take another one as MASTER_PORT" if works else ""
        yield Advice(f"open TCP port {facts.port} for the other nodes{more}")
    connect = ("nc", "-zvw3", target, facts.port)
    yield Command("", connect, f"on {failure.source} (while something listens there)")


def _named(pairs: set[Pair]) -> str:
    sources = {pair[0] for pair in pairs}
    targets = {pair[1] for pair in pairs}
    if len(sources) * len(targets) == len(pairs):
        return f"from {nodesets.fold(sources)} to {nodesets.fold(targets)}"
    return f"{plural(len(pairs), 'way')} among {nodesets.fold(sources | targets)}"


def of_taken_ports(facts: Facts) -> Iterator[Finding]:
    """Yield ports that could not be opened."""
    for node, ports in facts.opened.items():
        for port in ports:
            if port.port is not None:
                continue
            owner = f" by {clean(port.owner, 120)}" if port.owner else ""
            why = clean(port.why or "?", 120)
            taken = "in use" in why
            yield Finding(
                "store-port-taken" if taken else "port-not-opened",
                "failure",
                f"port {port.asked} of {facts.at(node)} "
                + (f"is in use{owner}" if taken else f"cannot be opened: {why}"),
                (node,),
                evidence=(f"bind: {why}",),
                next_steps=(
                    Command("", ("ss", "-ltnp", f"sport = :{port.asked}"), f"on {node}"),
                    Advice("end what is left of an old job there, or take another MASTER_PORT"),
                ),
            )
