"""The list of jobs to choose from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hangtop.keys.items import Item
from hangtop.terminal.spans import Line, cells, fit, line
from hangtop.views.common import ago, span
from hangtop.views.verdict.judged import state_line, worst_first
from hangtop_core.text import node_sets as nodesets
from hangtop_core.text.clean import plural, shorten

if TYPE_CHECKING:
    from hangtop_core.model.snapshot import Job, Snapshot

WIDEST_NODES = 40
"""Widest list of a job's nodes in the list of jobs, in characters."""


def job_items(snapshot: Snapshot, diagnoses: Any) -> list[Item]:
    """Return the jobs to choose from, with the state of each."""
    jobs = worst_first(snapshot.jobs, diagnoses)
    states = [state_line(diagnoses.get(job.key), job) for job in jobs]
    widest = max((cells(state) for state in states), default=0)
    names = max((min(len(job.name or job.key), 24) for job in jobs), default=0)
    return [
        Item(job.key, (_job_line(job, fit(state, widest), names, snapshot.at),), 2)
        for job, state in zip(jobs, states, strict=True)
    ]


def _job_line(job: Job, state: Line, names: int, now: float) -> Line:
    processes = (*job.launchers, *(rank.process for rank in job.ranks), *job.unnumbered)
    first = min(processes, key=lambda process: process.started_at)
    gone = max((rank.process.gone_at or 0.0 for rank in job.ranks), default=0.0)
    living = any(rank.process.gone_at is None for rank in job.ranks) or not job.ranks
    when = f"up {span(now - first.started_at)}" if living else f"ended {ago(gone, now)}"
    starter = f"{job.launcher} " if job.launcher else ""
    return line(
        *state,
        (f"  {job.name or job.key:<{names}}  ", "bold"),
        f"{plural(job.world_size or len(job.ranks), 'rank')} on "
        f"{shorten(nodesets.fold(job.nodes), WIDEST_NODES)}",
        (f"  {starter}pid {first.pid}  {when}", "dim"),
        (f"  {job.master}" if job.master else "", "dim"),
    )
