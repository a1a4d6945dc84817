"""Interfaces, routes, names and settings that would send a job another way than was tested."""

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
    """Yield missing routes, routes by another interface than the tested one, and differing MTUs."""
    asked = [spot.address for spot in facts.spots.values()]
    for node, table in facts.names.items():
        spot = facts.spots.get(node)
        if spot is None:
            continue
        by_source: dict[str, list[str]] = defaultdict(list)
        for address in asked:
            source = table.sources.get(address, spot.address)
            if source != spot.address and address != spot.address:
                by_source[source].append(address)
        for from_, targets in by_source.items():
            if not _is_address(from_):
                yield _no_route(facts, node, from_, targets)
                continue
            via = _interface(facts, node, from_)
            yield Finding(
                "wrong-interface",
                "warning",
                f"{facts.at(node)} goes to {_first_few(targets)} by {via}, not by {spot.interface}",
                (node,),
                evidence=(f"its kernel sends to {targets[0]} from {clean(from_)}",),
                next_steps=(Command("", ("ip", "route", "get", targets[0]), f"on {node}"),),
            )
    yield from _of_mtu(facts)


def _no_route(facts: Facts, node: str, why: str, targets: list[str]) -> Finding:
    return Finding(
        "no-route",
        "warning",
        f"{facts.at(node)} has no way to {_first_few(targets)}",
        (node,),
        evidence=(f"its kernel says: {clean(why, 120)}",),
        next_steps=(Command("", ("ip", "route", "get", targets[0]), f"on {node}"),),
    )


def _interface(facts: Facts, node: str, address: str) -> str:
    look = facts.looked.get(node)
    for link in look.links if look is not None else ():
        if any(entry.address == address for entry in link.addresses):
            return f"{clean(link.name)} ({address})"
    return clean(address, 80)


def _of_mtu(facts: Facts) -> Iterator[Finding]:
    counts = Counter(spot.mtu for spot in facts.spots.values())
    if len(counts) < 2:
        return
    usual = counts.most_common(1)[0][0]
    unusual = {node: spot for node, spot in facts.spots.items() if spot.mtu != usual}
    differences = ", ".join(
        f"{spot.mtu} on {node} ({spot.interface})" for node, spot in unusual.items()
    )
    yield Finding(
        "mtu-mismatch",
        "warning",
        f"the MTU is {usual} on most nodes, but {differences}",
        tuple(unusual),
        next_steps=(
            Advice("give all interfaces of one network the same MTU: ip link set IF mtu N"),
        ),
    )


def of_names(facts: Facts) -> Iterator[Finding]:
    """Yield names that resolve to nothing or to another node; by asking node if few are wrong."""
    wrong: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    unknown: dict[str, list[tuple[str, str]]] = defaultdict(list)
    answered: Counter[str] = Counter()
    for target in facts.present:
        name = facts.hostname(target)
        own = facts.own(target)
        for asking, table in facts.names.items():
            resolved = table.names.get(name)
            if isinstance(resolved, str):
                unknown[name].append((asking, resolved))
            elif resolved is not None and not _leads(resolved, own, asking == target):
                wrong[name, _first_few(list(resolved))].append((asking, target))
            elif resolved is not None:
                answered[name] += 1
    for (name, address), pairs in wrong.items():
        yield _wrong(facts, name, address, pairs, answered[name])
    for name, failures in unknown.items():
        askers = [asker for asker, _ in failures]
        what = clean(failures[0][1], 120)
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
    """Yield addresses that resolve to another node's name."""
    node_by_name = {facts.hostname(node): node for node in facts.looked}
    node_by_name |= {node: node for node in facts.looked}
    for node, spot in facts.spots.items():
        asking: dict[str, list[str]] = defaultdict(list)
        for asker, table in facts.names.items():
            name = clean(table.reverse.get(spot.address) or "", 100)
            owner = node_by_name.get(name) or node_by_name.get(name.partition(".")[0])
            if owner not in (None, node):
                asking[name].append(asker)
        for name, askers in asking.items():
            look = Command("", ("getent", "hosts", spot.address), f"on {askers[0]}")
            yield Finding(
                "name-wrong",
                "warning",
                f"{nodesets.fold(askers)} takes {spot.address}, which is {node}'s, to be {name}",
                tuple(askers),
                next_steps=(look,),
            )


def _leads(addresses: tuple[str, ...], own: frozenset[str], itself: bool) -> bool:
    """Whether every address that may be returned leads to the node."""
    return all(itself if _is_loopback(address) else address in own for address in addresses)


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
    asking = sorted({asker for asker, _ in pairs})
    target = pairs[0][1]
    owner = next((n for n in facts.present if address in facts.own(n) and n != target), None)
    belongs = f", which is {owner}'s" if owner and not _is_loopback(address) else ""
    evidence = [f"{name} has {_first_few(sorted(facts.own(target)))}"]
    if right:
        evidence.append(f"{right} of {right + len(asking)} nodes resolve it right")
    return Finding(
        "name-wrong",
        "failure",
        f"{nodesets.fold(asking)} takes {name} to be {address}{belongs}, not "
        f"{facts.spots[target].address if target in facts.spots else 'its own'}",
        tuple(asking),
        tuple((asker, target) for asker in asking),
        tuple(evidence),
        (_look_up(asking[0], name),),
    )


def _of_own_names(facts: Facts) -> Iterator[Finding]:
    """Yield nodes whose own name resolves to loopback for them: gloo then offers that address."""
    if len(facts.present) < 2:
        return
    misled = []
    for node, table in facts.names.items():
        resolved = table.names.get(facts.hostname(node))
        if isinstance(resolved, tuple) and resolved and _is_loopback(resolved[0]):
            misled.append(node)
    if misled:
        setting = settings(facts, SETTING["gloo"], misled)
        yield Finding(
            "wrong-interface",
            "warning",
            f"{nodesets.fold(misled)}: its own name leads to its loopback address, which gloo then "
            "offers to other nodes",
            tuple(misled),
            next_steps=(
                Advice(f"set {setting}, or mend /etc/hosts" if setting else "mend /etc/hosts"),
            ),
        )


def settings(facts: Facts, name: str, nodes: Iterable[str]) -> str:
    """Return the settings that select the tested interfaces; empty if none was tested."""
    nodes_of: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        if node in facts.spots:
            nodes_of[facts.spots[node].interface].append(node)
    if len(nodes_of) < 2 or name != SETTING["gloo"]:
        return f"{name}={','.join(sorted(nodes_of))}" if nodes_of else ""
    # gloo opens every listed interface, so one that is missing on a node fails there.
    assignments = (
        f"{name}={interface} on {nodesets.fold(members)}"
        for interface, members in sorted(nodes_of.items())
    )
    return " and ".join(assignments)


def of_settings(facts: Facts) -> Iterator[Finding]:
    """Yield settings that name missing interfaces; equal ones together."""
    unfit: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for node, look in facts.looked.items():
        up = [clean(link.name) for link in look.links if link.up and link.addresses]
        for name in SETTING.values():
            value = clean(look.settings.get(name, ""))
            lost = gloo_lacks(value, up) if name == SETTING["gloo"] else _nccl_lacks(value, up)
            if lost:
                part = f": {lost!r}" if lost != value else ""
                unfit[name, value + part, ", ".join(up)].append(node)
    for (name, value, present), nodes in unfit.items():
        yield Finding(
            "wrong-interface",
            "failure",
            f"{name}={value} fits no interface of {nodesets.fold(nodes)} that has an address",
            tuple(nodes),
            evidence=(f"there are {present}" if present else "there is none",),
            next_steps=(Advice(f"correct or leave out {name}"),),
        )


def gloo_lacks(value: str, interfaces: Sequence[str]) -> str:
    """Return the prefixes in a list that fit no interface: gloo then fails.

    Seen with torch 2.13: it opens every listed interface, and takes `=`, `^` and blanks for parts
    of names.
    """
    names = [name for name in value.split(",") if name]
    return ",".join(n for n in names if not any(link.startswith(n) for link in interfaces))


def _nccl_lacks(value: str, interfaces: Sequence[str]) -> str:
    return "" if any(fits(value, link) for link in interfaces) else value


def fits(value: str, interface: str) -> bool:
    """Whether NCCL's setting selects an interface.

    As NCCL reads it (src/misc/socket.cc): a list of prefixes, of whole names after `=`, of excluded
    ones after `^`.
    """
    excluded = value.startswith("^")
    exact = value.lstrip("^").startswith("=")
    names = [name for name in value.lstrip("^=").split(",") if name]
    is_listed = any(interface == name if exact else interface.startswith(name) for name in names)
    return is_listed != excluded


def _first_few(texts: list[str]) -> str:
    shown = ", ".join(clean(text, 80) for text in texts[:3])
    return shown + (f" and {len(texts) - 3} more" if len(texts) > 3 else "")
