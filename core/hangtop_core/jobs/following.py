"""The same job in a later snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.model.snapshot import ENDED

if TYPE_CHECKING:
    from hangtop_core.model.snapshot import Job, Snapshot

Identity = tuple[str, int, int]
"""As `Process.identity`."""


def follow(job: Job, snapshot: Snapshot) -> Job | None:
    """The same job in a later snapshot; its key may have become another one.

    The key is made of what is known of the ranks, and of some that is only learnt in time.
    """
    same = snapshot.job(job.key)
    if same is not None:
        return same
    pids = pids_of(job)
    return next((other for other in snapshot.jobs if pids & pids_of(other)), None)


def pids_of(job: Job) -> set[Identity]:
    """Identities of all processes of a job."""
    ranks = [rank.process for rank in job.ranks]
    return {one.identity for one in (*ranks, *job.launchers, *job.unnumbered)}


def live_pids(job: Job) -> frozenset[Identity]:
    """Identities of its ranks that have not left."""
    ranks = [rank.process for rank in job.ranks if rank.state not in ENDED]
    return frozenset([(one.node, one.pid, one.start) for one in (*ranks, *job.unnumbered)])


def attempt_pids(job: Job) -> frozenset[Identity]:
    """Identities of the ranks that tell one attempt from the next: live ones, if there are any.

    An attempt may be so short that its ranks are only seen once they have left.
    """
    ranks = (rank.process for rank in job.ranks)
    return live_pids(job) or frozenset(one.identity for one in (*ranks, *job.unnumbered))
