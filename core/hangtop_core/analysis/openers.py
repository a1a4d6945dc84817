"""Who else has a file, pipe or socket open, in words: ranks by their numbers."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from hangtop_core.model.descriptors import MOST_READ
from hangtop_core.text.clean import clean, plural
from hangtop_core.text.rank_sets import rank_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hangtop_core.model.descriptors import DescriptorTable, Holder, Opener, Openers
    from hangtop_core.model.snapshot import Process, Rank, Snapshot

_MODES = {"r": "reading", "w": "writing", "rw": "reading and writing"}


def how_many(table: DescriptorTable, process: Process) -> str:
    """`11 descriptors`, or `4096 of 20000 descriptors` where not all were read."""
    read, count = len(table.descriptors), process.fd_count or 0
    if read >= MOST_READ < count:
        return f"{read} of {count} descriptors"
    return plural(read, "descriptor")


def process_names(snapshot: Snapshot, node: str) -> dict[int, str]:
    """`rank 3`, `DataLoader worker 1 of rank 2`, `launcher torchrun`, by pid, of all jobs there."""
    return names_by_node(snapshot).get(node, {})


def names_by_node(snapshot: Snapshot) -> dict[str, dict[int, str]]:
    """The same of all nodes."""
    found: dict[str, dict[int, str]] = defaultdict(dict)
    for job in snapshot.jobs:
        for process in job.launchers:
            text = f"launcher {clean(process.launcher or process.comm, 40)}"
            found[process.node][process.pid] = text
        for rank in job.ranks:
            names = found[rank.node]
            for child in rank.children:
                label = clean(child.label or child.comm, 40)
                names[child.pid] = f"{label} of {rank_name(rank.rank)}"
            names[rank.process.pid] = rank_name(rank.rank)
    return found


def opener_text(names: Mapping[int, str], one: Opener) -> str:
    """The process of a job, or the program where it is of none; ``names`` are those of its node."""
    return names.get(one.pid) or clean(one.comm, 40)


def holder_text(names: Mapping[int, str], one: Holder) -> str:
    """`rank 3 holds the lock`, `tee (pid 9) reads`; ``names`` are those of its node."""
    who = names.get(one.pid) or f"{clean(one.comm, 30)} (pid {one.pid})"
    return f"{who} {clean(one.how, 60)}"


def openers_text(snapshot: Snapshot, rank: Rank, fd: int, said: Openers) -> list[str]:
    """Lines: what the descriptor is, then everybody else who has it, or nobody."""
    lines = [f"fd {fd} of {rank_name(rank.rank)} is {clean(said.target, 300)}"]
    names = process_names(snapshot, rank.node)
    for one in said.holders:
        mode = f", {_MODES[one.mode]}" if one.mode in _MODES else ""
        who = opener_text(names, one)
        state, how = clean(one.state, 40), clean(one.how, 60)
        lines.append(f"  {who} (pid {one.pid}, state {state}) {how}: fd {one.fd}{mode}")
    if not said.holders:
        lines.append("  nobody else on the node has it open")
    if said.more:
        lines.append(f"  and {said.more} more")
    if said.hidden:
        hidden = plural(said.hidden, "process", "processes")
        lines.append(f"  {hidden} of others could not be looked into")
    return lines
