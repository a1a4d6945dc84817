"""What a rank has open: which descriptor it waits on, who is at its other end, how it is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.peers import End
from hangtop_core.analysis.verdict.pipes import at_work

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hangtop_core.analysis.peers import Peer
    from hangtop_core.analysis.verdict.base import Subject
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model.descriptors import Descriptor, FileServer, Holder

_HOLDERS = 4
"""Processes that hold a descriptor which are named."""


def peer(case: Case, subject: Subject, one: Descriptor) -> Peer | None:
    """Who is at the other end of a subject's socket, where that is known."""
    return case.peers.get(End(subject.rank.node, subject.pid, one.fd))


def descriptor(subject: Subject, number: int | None = None) -> Descriptor | None:
    """The descriptor a subject's main thread waits on or for, or the one with a given number."""
    main = subject.activity.main
    wanted = number if number is not None else (main.fd if main is not None else None)
    table = subject.rank.descriptors
    if table is None:
        return None
    if wanted is None:
        return table.opening
    one = table.of(wanted)
    return None if one is None else at_work(subject.rank, one)


def silent_servers(subject: Subject) -> list[FileServer]:
    """File servers that may be why a subject is in state D: they do not answer its node.

    Where the file is known only that of its mount; else those of all its mounts.
    """
    table, main = subject.rank.descriptors, subject.activity.main
    if table is None or main is None or main.state != "D":
        return []
    one = descriptor(subject)
    known = one.mount if one is not None and one.server else None
    return [s for s in table.servers if s.trouble and known in (None, s.mount)]


def named_holder(one: Holder, names: Mapping[int, str]) -> str:
    """`rank 3 (pid 4711, state S)`; of a process of no job its program stands inside."""
    name = names.get(one.pid)
    if name is None:
        return f"pid {one.pid} ({one.comm}, state {one.state})"
    return f"{name} (pid {one.pid}, state {one.state})"


def name_descriptor(
    one: Descriptor, other: Peer | None = None, names: Mapping[int, str] | None = None
) -> str:
    """`fd 13 = /mnt/a/b on /mnt (nfs4, nfs04:/export)`, with its holders, by ``names`` of pids.

    Of a socket the two ends, and whose the other one is.
    """
    text = f"fd {one.fd} = {one.target}" if one.fd >= 0 else one.target
    if one.fstype and one.kind in ("file", "directory"):
        source = f", {one.server}" if one.server else ""
        text += f" on {one.mount or '?'} ({one.fstype}{source})"
    if one.socket is not None:
        text += f" {one.socket.local} -> {one.socket.remote} {one.socket.state}"
        pid = one.socket.peer_pid
        text += (
            f" = {other.text}" if other else f" = pid {pid} ({one.socket.peer_name})" * bool(pid)
        )
    if one.holders:
        text += "; " + ", ".join(
            f"{named_holder(h, names or {})} {h.how}" for h in one.holders[:_HOLDERS]
        )
    return text
