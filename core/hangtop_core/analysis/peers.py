"""Who is at the other end of a socket: the rank, on whatever node it is.

A connection is known by its two ends, which its two owners see the other way round. On one node
the probe finds the owner itself; over nodes the tables of open descriptors are compared here. A
loopback address is one end only within its own network namespace. Where the owner's table was not
read, the address still tells the node.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from hangtop_core.jobs.joining import master
from hangtop_core.model.node.places import Places
from hangtop_core.text.addresses import host_of, is_loopback
from hangtop_core.text.clean import clean
from hangtop_core.text.rank_sets import rank_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hangtop_core.model.descriptors import Socket
    from hangtop_core.model.snapshot import DescriptorTable, Job, Process, Rank, Snapshot

MAX_NODES = 8
"""Nodes whose ranks are asked about for one rank's sockets."""


class Peer(Struct, frozen=True, gc=False):
    """The other end of a connection."""

    node: str
    label: str = ""
    """`rank 6`, `DataLoader worker 1 of rank 6`, `torchrun`; empty where only the node is known."""
    rank: int | None = None
    pid: int | None = None

    @property
    def text(self) -> str:
        """`rank 6 on node-2`."""
        return f"{self.label or 'a process'} on {clean(self.node)}"


class End(NamedTuple):
    """One descriptor that is a socket."""

    node: str
    pid: int
    fd: int


class _Owned(NamedTuple):
    end: End
    process: Process
    socket: Socket


def peers(snapshot: Snapshot) -> dict[End, Peer]:
    """Return who is at the other end of every connected socket that was read, as far as known."""
    return _Peers(snapshot).found


def unread(
    snapshot: Snapshot, rank: Rank, found: Mapping[End, Peer], fd: int | None = None
) -> dict[str, list[int]]:
    """Return, by node, ranks whose tables would tell who a rank's sockets lead to.

    ``found`` is what `peers` says; with ``fd`` only that socket counts. Empty once these tables
    were read, whatever they hold.
    """
    job = next((job for job in snapshot.jobs if any(one is rank for one in job.ranks)), None)
    return _wanted(rank, found, fd, _untold(job) if job is not None else {})


def sought(snapshot: Snapshot) -> dict[str, frozenset[int]]:
    """Return, by node, ranks whose tables tell for whom a rank on another node waits."""
    found: Mapping[End, Peer] | None = None
    wanted: dict[str, set[int]] = defaultdict(set)
    for job in snapshot.jobs:
        waiting = [
            (rank, main.fd)
            for rank in job.ranks
            if rank.descriptors is not None and len(job.nodes) > 1
            if (main := rank.process.main_thread) is not None and main.fd is not None
        ]
        untold = _untold(job) if waiting else {}
        if not untold:
            continue  # all tables were read
        found = peers(snapshot) if found is None else found
        for rank, fd in waiting:
            for node, pids in _wanted(rank, found, fd, untold).items():
                wanted[node].update(pids)
    return {node: frozenset(pids) for node, pids in wanted.items()}


def _untold(job: Job) -> dict[str, list[int]]:
    """Ranks whose tables were not read, by node."""
    untold: dict[str, list[int]] = defaultdict(list)
    for rank in job.ranks:
        if rank.descriptors is None and not rank.ended:
            untold[rank.node].append(rank.process.pid)
    return untold


def _wanted(
    rank: Rank, found: Mapping[End, Peer], fd: int | None, untold: Mapping[str, list[int]]
) -> dict[str, list[int]]:
    nodes: dict[str, None] = {}
    for item in rank.opened:
        if fd not in (None, item.fd):
            continue
        peer = found.get(End(rank.node, rank.process.pid, item.fd))
        if peer is not None and not peer.label:
            nodes[peer.node] = None
    return {node: untold[node] for node in list(nodes)[:MAX_NODES] if node in untold}


class _Peers:
    """All sockets of a snapshot, by their ends."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._places = Places(snapshot.nodes)
        self._owners: dict[tuple[object, str, str], list[_Owned]] = defaultdict(list)
        owned = list(self._owned())
        for one in owned:
            self._owners[self._key(one, one.socket.local, one.socket.remote)].append(one)
        self.found: dict[End, Peer] = {}
        for one in owned:
            peer = self._peer(one)
            if peer is not None:
                self.found[one.end] = peer

    def _owned(self) -> Iterator[_Owned]:
        """Connected sockets of ranks, then those of their children, who inherit some."""
        for job in self._snapshot.jobs:
            for rank in job.ranks:
                yield from _sockets(rank.node, rank.process, rank.descriptors)
        for job in self._snapshot.jobs:
            for rank in job.ranks:
                for child in rank.children:
                    yield from _sockets(rank.node, child, rank.child_descriptors.get(child.pid))

    @cached_property
    def _known(self) -> Mapping[tuple[str, int], Peer]:
        """Everybody by node and pid."""
        found: dict[tuple[str, int], Peer] = {}
        for job in self._snapshot.jobs:
            for one in job.launchers:
                found[one.node, one.pid] = Peer(one.node, clean(one.label), None, one.pid)
            for rank in job.ranks:
                for child in rank.children:
                    label = f"{clean(child.label)} of {rank_name(rank.rank)}"
                    found[rank.node, child.pid] = Peer(rank.node, label, rank.rank, child.pid)
            for rank in job.ranks:
                pid = rank.process.pid
                found[rank.node, pid] = Peer(rank.node, rank_name(rank.rank), rank.rank, pid)
        return found

    def _key(self, one: _Owned, first: str, second: str) -> tuple[object, str, str]:
        inside = (one.end.node, one.process.net_ns) if is_loopback(host_of(first)) else None
        return inside, first, second

    def _peer(self, one: _Owned) -> Peer | None:
        socket, node = one.socket, one.end.node
        if socket.peer_pid is not None:
            other = Peer(node, f"{clean(socket.peer_name or 'process')}", None, socket.peer_pid)
            return self._known.get((node, socket.peer_pid), other)
        others = self._owners.get(self._key(one, socket.remote, socket.local), [])
        first = next((o for o in others if o.end != one.end), None)
        if first is not None and len({o.end.node for o in others}) == 1:
            return self._known.get((first.end.node, first.end.pid))
        host = host_of(socket.remote)
        there = None if is_loopback(host) else self._places.node_of(host, node)
        if there is None:
            return None
        told = master(one.process)
        is_store = told is not None and socket.remote.endswith(f":{told[1]}")
        if is_store and told is not None and self._places.node_of(told[0], node) == there:
            return Peer(there, "the store")
        return Peer(there)


def _sockets(node: str, process: Process, table: DescriptorTable | None) -> Iterator[_Owned]:
    for item in table.descriptors if table is not None else ():
        socket = item.socket
        if socket is not None and socket.family != "unix" and socket.state != "LISTEN":
            yield _Owned(End(node, process.pid, item.fd), process, socket)
