"""Finding a rank of a job by its key, and a node of a snapshot by its name."""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hangtop_core.model.snapshot import Job, Node, Rank, Snapshot


def rank_key(rank: Rank) -> str:
    """Return the identity of a rank's process: two processes may claim the same rank."""
    return f"{rank.node}:{rank.process.pid}:{rank.process.start}"


def find_rank(job: Job | None, key: str | None, number: int | None = None) -> Rank | None:
    """Return the rank with this key; the lookup is faster where its rank number is known."""
    if job is None or key is None:
        return None
    if number is not None:
        place = bisect_left(job.ranks, number, key=attrgetter("rank"))
        if place < len(job.ranks) and rank_key(job.ranks[place]) == key:
            return job.ranks[place]
    pid = key.rpartition(":")[0].rpartition(":")[2]
    # Compare numbers first: making a key for each of thousands of ranks is slow.
    number = int(pid) if pid.isdecimal() else -1
    candidates = (rank for rank in job.members if rank.process.pid == number)
    return next((rank for rank in candidates if rank_key(rank) == key), None)


def node_of(snapshot: Snapshot, name: str) -> Node | None:
    """Return the node with this name."""
    return next((node for node in snapshot.nodes if node.name == name), None)
