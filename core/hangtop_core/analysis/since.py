"""Since when a job that hangs has got nowhere, also before anybody looked.

The scheduler tells that of a rank that sleeps. One that spins or polls was only seen to get nowhere
since it is watched; what it did before, its recorder tells: nothing was enqueued after its newest
entry. Where that is not known either, those that are known to wait say since when. That a log has
grown no more says nothing by itself: a job may print once an hour. Nor does it that a rank was
halted while it waited for others: its main thread ran for that, and got nowhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.standing import JITTER_S

if TYPE_CHECKING:
    from collections.abc import Collection

    from hangtop_core.analysis.progress import Progress
    from hangtop_core.analysis.standing import Standing
    from hangtop_core.model.snapshot import Job, Rank, Snapshot


def hung_since(
    snapshot: Snapshot, job: Job, progress: Progress, halted: Collection[int] = ()
) -> float | None:
    """When a job that hangs last got anywhere, by all that tells; None if nothing does.

    Args:
        snapshot: gives since when the job has been watched.
        job: that hangs.
        progress: of it, with a standing for each of its ranks.
        halted: ranks that were halted while they waited for others.
    """
    began = snapshot.observed_since
    if progress.since is None:
        return None
    found: list[float] = []
    for rank, standing in zip(job.ranks, progress.ranks, strict=False):
        if rank.ended or rank.rank in halted:
            continue
        if standing.moved:
            return progress.since
        if (since := _before(rank, standing, began)) is not None:
            found.append(since)
    return min(max(found, default=progress.since), progress.since)


def _before(rank: Rank, standing: Standing, began: float) -> float | None:
    """When a rank last got anywhere; None where it is not known before it was watched."""
    # One that has run since and is where it was looks again and again: so it may have before.
    polls = rank.moved_at is not None and rank.moved_at > max(began, standing.since + JITTER_S)
    if standing.since < began - JITTER_S and not polls:
        return standing.since
    trace = rank.recorder.trace if rank.recorder is not None else None
    if trace is None or not trace.newest_ns:
        return None
    return min(standing.since, trace.newest_ns / 1e9)
