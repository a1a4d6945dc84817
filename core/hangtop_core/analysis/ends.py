"""Whose the other ends of a process's sockets and pipes are, by what strace calls them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.openers import holder_text, process_names
from hangtop_core.analysis.peers import End, peers
from hangtop_core.text.clean import clean

if TYPE_CHECKING:
    from hangtop_core.model.snapshot import Rank, Snapshot


def ends(snapshot: Snapshot, rank: Rank) -> dict[str, str]:
    """Return words for `10.0.0.1:5->10.0.0.2:6` and `pipe:[7]`, as far as tables were read."""
    table = rank.descriptors
    if table is None:
        return {}
    found: dict[str, str] = {}
    others = peers(snapshot)
    names = process_names(snapshot, rank.node)
    for item in table.descriptors:
        if item.socket is not None:
            other = others.get(End(rank.node, rank.process.pid, item.fd))
            words = other.text if other is not None else _named(item.socket.peer_name)
            if words:
                found[f"{item.socket.local}->{item.socket.remote}"] = words
        elif item.holders:
            found[item.target] = ", ".join(holder_text(names, one) for one in item.holders)
    return found


def _named(name: str | None) -> str:
    return clean(name, 40) if name else ""
