"""Interfaces, routes, names and settings: what would send a job another way than was tested."""

from __future__ import annotations

import ipaddress
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from hangtop_core.nettest.facts import SETTING, Finding
from hangtop_core.text import node_sets as nodesets
from hangtop_core.text.clean import clean
from hangtop_core.text.commands import Advice, Command, Sign

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hangtop_core.nettest.facts import Facts


def of_links(facts: Facts) -> Iterator[Finding]:
    """Routes that lack, or leave by another interface than the one tested; MTUs that differ."""
    asked = [spot.address for spot in facts.spots.values()]
    for node, known in facts.names.items():
        spot = facts.spots.get(node)
        if spot is None:
            continue
        other: dict[str, list[str]] = defaultdict(list)
        for address in asked:
            source = known.sources.get(address, spot.address)
            if source != spot.address and address != spot.address:
                other[source].append(address)
        for from_, targets in other.items():
            if not _is_address(from_):
                yield _no_route(facts, node, from_, targets)
                continue
            via = _interface(facts, node, from_)
            yield Finding(
                "wrong-interface",
                "warning",
                f"{facts.at(node)} goes to {_some(targets)} by {via}, not by {spot.interface}",
                (node,),
                evidence=(f"its kernel sends to {targets[0]} from {clean(from_)}",),
                next_steps=(Command("", ("ip", "route", "get", targets[0]), f"on {node}"),),
            )
    yield from _of_mtu(facts)


def _no_route(facts: Facts, node: str, why: str, targets: list[str]) -> Finding:
    return Finding(
        "no-route",
        "warning",
        f"{facts.at(node)} has no way to {_some(targets)}",
        (node,),
        evidence=(f"its kernel says: {clean(why, 120)}",),
        next_steps=(Command("", ("ip", "route", "get", targets[0]), f"on {node}"),),
    )


def _interface(facts: Facts, node: str, address: str) -> str:
    look = facts.looked.get(node)
    for link in look.links if look is not None else ():
        if any(one.address == address for one in link.addresses):
            return f"{clean(link.name)} ({address})"
    return clean(address, 80)


def _of_mtu(facts: Facts) -> Iterator[Finding]:
    counts = Counter(spot.mtu for spot in facts.spots.values())
    if len(counts) < 2:
        return
    usual = counts.most_common(1)[0][0]
    odd = {node: spot for node, spot in facts.spots.items() if spot.mtu != usual}
    told = ", ".join(f"{spot.mtu} on {node} ({spot.interface})" for node, spot in odd.items())
    yield Finding(
        "mtu-mismatch",
        "warning",
        f"the MTU is {usual} on most nodes, but {told}",
        tuple(odd),
        next_steps=(
            Advice("give all interfaces of one network the same MTU: ip link set IF mtu N"),
        ),
    )


def of_names(facts: Facts) -> Iterator[Finding]:
    """Names that lead to nowhere, or to somebody else; told by who asks where only one is wrong."""
    wrong: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    unknown: dict[str, list[tuple[str, str]]] = defaultdict(list)
    answered: Counter[str] = Counter()
    for target in facts.present:
        name = facts.hostname(target)
        own = facts.own(target)
        for asking, known in facts.names.items():
            found = known.names.get(name)
            if isinstance(found, str):
                unknown[name].append((asking, found))
            elif found is not None and not _leads(found, own, asking == target):
                wrong[name, _some(list(found))].append((asking, target))
            elif found is not None:
                answered[name] += 1
    for (name, address), pairs in wrong.items():
        yield _wrong(facts, name, address, pairs, answered[name])
    for name, some in unknown.items():
        askers = [one for one, _ in some]
        what = clean(some[0][1], 120)
        yield Finding(
            "name-unresolved",
            "warning",
            f"{nodesets.fold(askers)} cannot resolve {name}: {what}",
            tuple(askers),
            next_steps=(
                Advice(f"put {name} into DNS or /etc/hosts of all nodes, or use addresses"),
            ),
        )
    yield from _of_own_names(facts)
    yield from _of_reverse(facts)


def _of_reverse(facts: Facts) -> Iterator[Finding]:
    """Addresses whose name is that of another node."""
    whose = {facts.hostname(node): node for node in facts.looked}
    whose |= {node: node for node in facts.looked}
    for node, spot in facts.spots.items():
        asking: dict[str, list[str]] = defaultdict(list)
        for one, known in facts.names.items():
            name = clean(known.reverse.get(spot.address) or "", 100)
            other = whose.get(name) or whose.get(name.partition(".")[0])
            if other not in (None, node):
                asking[name].append(one)
        for name, some in asking.items():
            look = Command("", ("getent", "hosts", spot.address), f"on {some[0]}")
            yield Finding(
                "name-wrong",
                "warning",
                f"{nodesets.fold(some)} takes {spot.address}, which is {node}'s, to be {name}",
                tuple(some),
                next_steps=(look,),
            )


def _leads(found: tuple[str, ...], own: frozenset[str], itself: bool) -> bool:
    """Whether every address that one may be given leads to the node."""
    return all(itself if _is_loopback(one) else one in own for one in found)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _look_up(node: str, name: str) -> Command:
    words = ("getent", "ahosts", name, Sign.THEN, "grep", name, "/etc/hosts")
    return Command("", words, f"on {node}")


def _wrong(
    facts: Facts, name: str, address: str, pairs: list[tuple[str, str]], right: int
) -> Finding:
    asking = sorted({one for one, _ in pairs})
    target = pairs[0][1]
    whose = next((n for n in facts.present if address in facts.own(n) and n != target), None)
    belongs = f", which is {whose}'s" if whose and not _is_loopback(address) else ""
    evidence = [f"{name} has {_some(sorted(facts.own(target)))}"]
    if right:
        evidence.append(f"{right} of {right + len(asking)} nodes resolve it right")
    return Finding(
        "name-wrong",
        "failure",
        f"{nodesets.fold(asking)} takes {name} to be {address}{belongs}, not "
        f"{facts.spots[target].address if target in facts.spots else 'its own'}",
        tuple(asking),
        tuple((one, target) for one in asking),
        tuple(evidence),
        (_look_up(asking[0], name),),
    )


def _of_own_names(facts: Facts) -> Iterator[Finding]:
    """Nodes whose own name is a loopback address to themselves: gloo then offers that one."""
    if len(facts.present) < 2:
        return
    odd = []
    for node, known in facts.names.items():
        found = known.names.get(facts.hostname(node))
        if isinstance(found, tuple) and found and _is_loopback(found[0]):
            odd.append(node)
    if odd:
        setting = settings(facts, SETTING["gloo"], odd)
        yield Finding(
            "wrong-interface",
            "warning",
            f"{nodesets.fold(odd)}: its own name leads to its loopback address, which gloo then "
            "offers to other nodes",
            tuple(odd),
            next_steps=(
                Advice(f"set {setting}, or mend /etc/hosts" if setting else "mend /etc/hosts"),
            ),
        )


def settings(facts: Facts, name: str, nodes: Iterable[str]) -> str:
    """What to set that nodes take the interfaces that were tested; empty where none was."""
    found: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        if node in facts.spots:
            found[facts.spots[node].interface].append(node)
    if len(found) < 2 or name != SETTING["gloo"]:
        return f"{name}={','.join(sorted(found))}" if found else ""
    # gloo opens all it is told, so that one that a node lacks fails there.
    told = (f"{name}={one} on {nodesets.fold(some)}" for one, some in sorted(found.items()))
    return " and ".join(told)


def of_settings(facts: Facts) -> Iterator[Finding]:
    """Settings that name interfaces which nodes do not have; equal ones together."""
    found: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for node, look in facts.looked.items():
        up = [clean(link.name) for link in look.links if link.up and link.addresses]
        for name in SETTING.values():
            value = clean(look.settings.get(name, ""))
            lost = gloo_lacks(value, up) if name == SETTING["gloo"] else _nccl_lacks(value, up)
            if lost:
                part = f": {lost!r}" if lost != value else ""
                found[name, value + part, ", ".join(up)].append(node)
    for (name, value, there), nodes in found.items():
        yield Finding(
            "wrong-interface",
            "failure",
            f"{name}={value} fits no interface of {nodesets.fold(nodes)} that has an address",
            tuple(nodes),
            evidence=(f"there are {there}" if there else "there is none",),
            next_steps=(Advice(f"correct or leave out {name}"),),
        )


def gloo_lacks(value: str, interfaces: Sequence[str]) -> str:
    """What of a list of beginnings of names fits no interface: gloo then fails.

    Seen with torch 2.13: it opens all that it is told, and takes `=`, `^` and blanks for parts of
    names.
    """
    names = [one for one in value.split(",") if one]
    return ",".join(n for n in names if not any(link.startswith(n) for link in interfaces))


def _nccl_lacks(value: str, interfaces: Sequence[str]) -> str:
    return "" if any(fits(value, link) for link in interfaces) else value


def fits(value: str, interface: str) -> bool:
    """Whether an interface is meant by NCCL's setting.

    As NCCL reads it (src/misc/socket.cc): a list of prefixes, of whole names after `=`, of what is
    not wanted after `^`.
    """
    excluded = value.startswith("^")
    exact = value.lstrip("^").startswith("=")
    names = [one for one in value.lstrip("^=").split(",") if one]
    found = any(interface == one if exact else interface.startswith(one) for one in names)
    return found != excluded


def _some(texts: list[str]) -> str:
    shown = ", ".join(clean(one, 80) for one in texts[:3])
    return shown + (f" and {len(texts) - 3} more" if len(texts) > 3 else "")
