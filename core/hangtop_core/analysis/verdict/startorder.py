"""Whether a process that is gone can have been a rank: launchers start ranks in order, at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model.snapshot import Job, Process, Rank

NEAR_PIDS = 64
"""How far the pid of a rank may be from that of one started just before or after it."""
STARTED_S = 5.0
"""Seconds within which a launcher starts all ranks of a node."""


def of_another(case: Case, node: str, pid: int | None) -> bool:
    """Whether a process, or a thread, is of another job."""
    return any(
        pid == one.pid or any(pid == thread.tid for thread in one.threads)
        for job in case.snapshot.jobs
        if job is not case.job
        for one in _processes(job, node)
    )


def _began_later(case: Case, first: Rank, pid: int) -> bool:
    """Whether a process was started too long after a rank to be of one start with it.

    Numbers are given in the order of starts: so it is where the rank had started threads or
    children of its own before, or something else was started much later and has a lower number.
    """
    rank = first.process
    own = (*(thread.tid for thread in rank.threads), *(child.pid for child in first.children))
    return any(rank.pid < one < pid for one in own) or any(
        rank.pid < one.pid < pid and one.started_at - rank.started_at >= STARTED_S
        for job in case.snapshot.jobs
        for one in _processes(job, first.node)
    )


def _processes(job: Job, node: str) -> Iterator[Process]:
    """All that are known of a job on a node."""
    yield from (one for one in (*job.launchers, *job.unnumbered) if one.node == node)
    for rank in job.ranks:
        if rank.node == node:
            yield rank.process
            yield from rank.children


def neighbours(
    local: int, beside: Mapping[int | None, Rank]
) -> tuple[tuple[int, Rank] | None, tuple[int, Rank] | None]:
    """Local rank and rank of the nearest that were started before and after one."""
    known = sorted(at for at in beside if at is not None)
    below = [(at, beside[at]) for at in known if at < local]
    above = [(at, beside[at]) for at in known if at > local]
    return (below[-1] if below else None, above[0] if above else None)


def fits(case: Case, pid: int | None, local: int, beside: Mapping[int | None, Rank]) -> bool:
    """Whether a pid can be that of a missing rank: launchers start ranks in order, at once."""
    below, above = neighbours(local, beside)
    if pid is None:
        return False
    if above is not None:
        high = above[1].process.pid
        return (below[1].process.pid if below is not None else high - NEAR_PIDS) < pid < high
    if below is None or not 0 < pid - below[1].process.pid < NEAR_PIDS:
        return False
    return not _began_later(case, below[1], pid)


def between(local: int, beside: Mapping[int | None, Rank]) -> str:
    """What says that a pid fits: those of the ranks that were started before and after."""
    parts = [
        f"local rank {at} has pid {rank.process.pid}"
        for at, rank in filter(None, neighbours(local, beside))
    ]
    return f"ranks are started in order: {', '.join(parts)}"
