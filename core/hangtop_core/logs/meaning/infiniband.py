"""The nodes that cannot reach each other over InfiniBand, by NCCL's lines at both ends: pure."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from hangtop_core.diagnosis import Evidence
from hangtop_core.text.clean import clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hangtop_core.logs.judging.judged import Fold
    from hangtop_core.model.file_log import Record

_RETRIES = "12"
"""IBV_WC_RETRY_EXC_ERR: the other end acknowledged nothing."""


def unconnected(folds: Iterable[Fold]) -> tuple[str, ...]:
    """Return two nodes that each report the other as not responding; empty if one end is silent.

    A dead node, or one whose port is down, reports nothing, or all others report it alone.
    """
    records = [record for fold in folds for record in fold.members]
    hosts = {address: host for host, address in _addresses(records)}
    peers = _silent_peers(records, hosts)
    if len(peers) == 2:
        return _unknown_pair(peers, hosts)
    mutual = [(a, b) for a in peers for b in peers[a] if a < b and a in peers.get(b, ())]
    return mutual[0] if len(mutual) == 1 else ()


def _silent_peers(records: Iterable[Record], hosts: Mapping[str, str]) -> dict[str, set[str]]:
    """Return by node the peers that it reports as not responding."""
    peers: dict[str, set[str]] = defaultdict(set)
    for record in records:
        fields = record.fields
        host = _node(record)
        if host and _RETRIES in (fields.get("error"), fields.get("status")):
            peer = fields.get("peer", "").partition("<")[0]
            peers[host].add(hosts.get(peer, peer))
    return peers


def _unknown_pair(peers: Mapping[str, set[str]], hosts: Mapping[str, str]) -> tuple[str, ...]:
    """Return two nodes that name two different peers, whose addresses may be unknown."""
    first, second = sorted(peers)
    named = peers[first] | peers[second]
    apart = not peers[first] & peers[second]
    if not apart or len(named) != 2 or _third(named - peers.keys(), hosts):
        return ()
    return first, second


def ends_of(folds: Iterable[Fold], ends: Sequence[str]) -> list[Evidence]:
    """Return the first line of each of two nodes about the other."""
    records = [r for fold in folds for r in fold.members if r.cause == "nccl-ib-error"]
    by_node = {_node(record): record for record in reversed(records)}
    return [Evidence("log", by_node[end].rank, clean(by_node[end].text, 600)) for end in ends]


def _third(strangers: set[str], hosts: Mapping[str, str]) -> bool:
    """Whether a peer is known to be neither of the two nodes."""
    return any(stranger in hosts.values() for stranger in strangers)


def _addresses(records: Iterable[Record]) -> Iterator[tuple[str, str]]:
    """Yield nodes and the addresses of NCCL's connections there."""
    for record in records:
        host, address = _node(record), record.fields.get("address")
        if record.code == "N1" and host and address:
            yield host, address


def _node(record: Record) -> str:
    return record.fields.get("host") or record.node or ""
