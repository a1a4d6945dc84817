"""Which interface and address of each node is tested: that of a network which the nodes share."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.errors import UsageError
from hangtop_core.nettest.facts import Spot

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from hangtop_core.nettest.said import Look

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,14}")
"""Of an interface (IFNAMSIZ is 16): it gets into commands that people are shown."""


class _Candidate(NamedTuple):
    spot: Spot
    network: _Network
    default: bool
    """Whether the default route goes by it."""


def spots(
    looked: Mapping[str, Look], wanted: str | None, named: Collection[str] = ()
) -> dict[str, Spot]:
    """Return where each node is tested; nodes without any address that fits are left out.

    An address that several nodes have (docker0 is 172.17.0.1 everywhere) leads to none of them.
    Of the rest the network counts that most nodes are on; between equals the one to which the
    nodes' names lead, then hardware before what is virtual, then the one with the default route.

    Args:
        looked: what nodes have, by name.
        wanted: an interface's name or a network (10.0.0.0/8) that it has to be.
        named: addresses to which names of nodes lead.

    Raises:
        UsageError: when no node has what is wanted.
    """
    known = {node: _candidates(look) for node, look in looked.items()}
    shared = _shared_addresses(known) if len(looked) > 1 else frozenset()
    if wanted is not None:
        known = _wanted(known, wanted)
    known = {
        node: [c for c in candidates if c.spot.address not in shared]
        for node, candidates in known.items()
    }
    rated = _rated(known, named)
    return {
        node: max(candidates, key=lambda c: (rated[c.network], c.spot.address in named)).spot
        for node, candidates in known.items()
        if candidates
    }


def _shared_addresses(known: Mapping[str, list[_Candidate]]) -> frozenset[str]:
    """Return the addresses that are met more than once."""
    times = Counter(c.spot.address for candidates in known.values() for c in candidates)
    return frozenset(address for address, count in times.items() if count > 1)


def _wanted(known: Mapping[str, list[_Candidate]], wanted: str) -> dict[str, list[_Candidate]]:
    fitting = {
        node: [c for c in candidates if _fits(c, wanted)] for node, candidates in known.items()
    }
    if known and not any(fitting.values()):
        names = {c.spot.interface for candidates in known.values() for c in candidates}
        raise UsageError(
            f"--interface {wanted}: no node has an address there",
            "Name an interface (eth0) or a network (10.0.0.0/8). These have addresses: "
            + ", ".join(sorted(names)),
        )
    return fitting


def _candidates(look: Look) -> list[_Candidate]:
    found = []
    for link in look.links:
        if link.kind == "loopback" or not link.up or not _NAME.fullmatch(link.name):
            continue
        for one in link.addresses:
            if one.scope != "global" or "%" in one.address:
                continue
            try:
                at = ipaddress.ip_interface(f"{one.address}/{one.length}")
            except ValueError:
                continue
            spot = Spot(link.name, one.address, one.length, link.mtu, link.kind)
            found.append(_Candidate(spot, at.network, link.name == look.default))
    # IPv6 only where there is nothing else: what torch and NCCL do by themselves.
    return [one for one in found if one.network.version == 4] or found


def _fits(one: _Candidate, wanted: str) -> bool:
    if one.spot.interface == wanted:
        return True
    try:
        network = ipaddress.ip_network(wanted, strict=False)
    except ValueError:
        return False
    return ipaddress.ip_address(one.spot.address) in network


def _rated(
    known: Mapping[str, list[_Candidate]], named: Collection[str]
) -> dict[_Network, tuple[int, ...]]:
    """Rate networks: how many nodes are on them, by name, by hardware, by default."""
    rated: dict[_Network, list[int]] = {}
    for some in known.values():
        for network in {one.network for one in some}:
            there = [one for one in some if one.network == network]
            rates = rated.setdefault(network, [0, 0, 0, 0])
            rates[0] += 1
            rates[1] += any(one.spot.address in named for one in there)
            rates[2] += any(one.spot.kind in ("ethernet", "infiniband", "bond") for one in there)
            rates[3] += any(one.default for one in there)
    return {network: tuple(rates) for network, rates in rated.items()}
