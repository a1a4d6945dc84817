"""The interface and address at which each node is tested: of a network that the nodes share."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.errors import UsageError
from hangtop_core.nettest.facts import Spot

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from hangtop_core.nettest.answers import Look

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,14}")
"""Name of an interface (IFNAMSIZ is 16): it gets into commands that people are shown."""


class _Candidate(NamedTuple):
    spot: Spot
    network: _Network
    default: bool
    """Whether the default route uses it."""


def spots(
    looked: Mapping[str, Look], wanted: str | None, named: Collection[str] = ()
) -> dict[str, Spot]:
    """Return the tested address of each node; nodes without a fitting address are left out.

    An address that several nodes have (docker0 is 172.17.0.1 everywhere) leads to none of them.
    Among the others, the network of the most nodes is chosen; between equals the one that the
    nodes' names resolve to, then hardware before virtual interfaces, then the one with the default
    route.

    Args:
        looked: interfaces of the nodes, by name.
        wanted: an interface's name or a network (10.0.0.0/8) that is required.
        named: addresses that names of nodes resolve to.

    Raises:
        UsageError: when no node has what is wanted.
    """
    by_node = {node: _candidates(look) for node, look in looked.items()}
    shared = _shared_addresses(by_node) if len(looked) > 1 else frozenset()
    if wanted is not None:
        by_node = _wanted(by_node, wanted)
    by_node = {
        node: [c for c in candidates if c.spot.address not in shared]
        for node, candidates in by_node.items()
    }
    rated = _rated(by_node, named)
    return {
        node: max(candidates, key=lambda c: (rated[c.network], c.spot.address in named)).spot
        for node, candidates in by_node.items()
        if candidates
    }


def _shared_addresses(by_node: Mapping[str, list[_Candidate]]) -> frozenset[str]:
    """Return the addresses that occur more than once."""
    times = Counter(c.spot.address for candidates in by_node.values() for c in candidates)
    return frozenset(address for address, count in times.items() if count > 1)


def _wanted(by_node: Mapping[str, list[_Candidate]], wanted: str) -> dict[str, list[_Candidate]]:
    fitting = {
        node: [c for c in candidates if _fits(c, wanted)] for node, candidates in by_node.items()
    }
    if by_node and not any(fitting.values()):
        names = {c.spot.interface for candidates in by_node.values() for c in candidates}
        raise UsageError(
            f"--interface {wanted}: no node has an address there",
            "Name an interface (eth0) or a network (10.0.0.0/8). These have addresses: "
            + ", ".join(sorted(names)),
        )
    return fitting


def _candidates(look: Look) -> list[_Candidate]:
    candidates = []
    for link in look.links:
        if link.kind == "loopback" or not link.up or not _NAME.fullmatch(link.name):
            continue
        for address in link.addresses:
            if address.scope != "global" or "%" in address.address:
                continue
            try:
                at = ipaddress.ip_interface(f"{address.address}/{address.length}")
            except ValueError:
                continue
            spot = Spot(link.name, address.address, address.length, link.mtu, link.kind)
            candidates.append(_Candidate(spot, at.network, link.name == look.default))
    # IPv6 only without IPv4, as torch and NCCL do.
    return [candidate for candidate in candidates if candidate.network.version == 4] or candidates


def _fits(candidate: _Candidate, wanted: str) -> bool:
    if candidate.spot.interface == wanted:
        return True
    try:
        network = ipaddress.ip_network(wanted, strict=False)
    except ValueError:
        return False
    return ipaddress.ip_address(candidate.spot.address) in network


def _rated(
    by_node: Mapping[str, list[_Candidate]], named: Collection[str]
) -> dict[_Network, tuple[int, ...]]:
    """Rate networks: how many nodes are on them, by name, by hardware, by default."""
    rated: dict[_Network, list[int]] = {}
    for candidates in by_node.values():
        for network in {candidate.network for candidate in candidates}:
            members = [candidate for candidate in candidates if candidate.network == network]
            rates = rated.setdefault(network, [0, 0, 0, 0])
            rates[0] += 1
            rates[1] += any(candidate.spot.address in named for candidate in members)
            rates[2] += any(
                candidate.spot.kind in ("ethernet", "infiniband", "bond") for candidate in members
            )
            rates[3] += any(candidate.default for candidate in members)
    return {network: tuple(rates) for network, rates in rated.items()}
