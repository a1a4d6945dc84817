"""Tracking of a job from one snapshot to a later one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.model.snapshot import ENDED

if TYPE_CHECKING:
    from hangtop_core.model.snapshot import Job, Snapshot

Identity = tuple[str, int, int]
"""The identity of a process, as `Process.identity`."""


def follow(job: Job, snapshot: Snapshot) -> Job | None:
    """Return the same job in a later snapshot, where its key may have changed.

    The key is made from data of the ranks, some of which hangtop learns only with time.
    """
    same = snapshot.job(job.key)
    if same is not None:
        return same
    pids = pids_of(job)
    return next((later for later in snapshot.jobs if pids & pids_of(later)), None)


def pids_of(job: Job) -> set[Identity]:
    """Return the identities of all processes of a job."""
    ranks = [rank.process for rank in job.ranks]
    return {process.identity for process in (*ranks, *job.launchers, *job.unnumbered)}


def live_pids(job: Job) -> frozenset[Identity]:
    """Return the identities of its ranks that have not exited."""
    ranks = [rank.process for rank in job.ranks if rank.state not in ENDED]
    return frozenset(
        [(process.node, process.pid, process.start) for process in (*ranks, *job.unnumbered)]
    )


def attempt_pids(job: Job) -> frozenset[Identity]:
    """Return the identities that distinguish one attempt from the next: live ranks, if any.

    An attempt may be so short that its ranks are first seen after they have exited.
    """
    ranks = (rank.process for rank in job.ranks)
    return live_pids(job) or frozenset(process.identity for process in (*ranks, *job.unnumbered))
