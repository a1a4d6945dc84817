"""How to observe, and the results: the values that pass between a session and its user."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from hangtop_core.diagnosis import HANG_AFTER_S, Diagnosis
from hangtop_core.model.snapshot import Job, Snapshot

QUIET = 2.0
"""Seconds without the main thread running after which a process counts as waiting."""
Diagnose = Callable[[Snapshot, Job | None, float], Diagnosis]


class Options(Struct, frozen=True):
    """How to observe; times in seconds."""

    interval: float = 1.0
    sample_every: float = 5.0
    sample_early: float | None = None
    """Seconds between two stacks of a process in its first half minute, where that is less."""
    hang_after: float = HANG_AFTER_S
    all_users: bool = False
    pids: tuple[int, ...] = ()
    readonly: bool = False
    """Allow only reading /proc and non-blocking py-spy. A flight recorder could answer unattended,
    but with a thread of the rank."""
    allow_pause: bool = False
    """Allow C frames of suspects to be read where a rule asks for them: this pauses each for a
    moment."""
    slurm_jobs: tuple[str, ...] = ()
    """Exclude processes that say they belong to a Slurm job other than these."""
    slurm_step: str | None = None
    watch: bool = True
    """Whether nodes are observed; otherwise they are only connected to, and asked nothing
    unrequested."""
    budget: float | None = None
    """Share of one core that a node may spend on passes over its processes, and again on stacks of
    those that move; None where a person is watching."""
    rest: float = QUIET
    """Seconds that a process must rest before its stack is taken, and before other requests that
    rest triggers."""

    def watch_request(self) -> dict[str, Any]:
        """Return the parameters of the `watch` request of every node."""
        params: dict[str, Any] = {
            "interval": self.interval,
            "all_users": self.all_users,
            "pids": list(self.pids) or None,
        }
        if self.slurm_jobs:
            params |= {"slurm_jobs": self.slurm_jobs, "slurm_step": self.slurm_step}
        if self.budget is not None:
            params["budget"] = self.budget
        return params


class Update(Struct, frozen=True):
    """The snapshot at one moment, and the conclusions from it."""

    snapshot: Snapshot
    diagnoses: Mapping[str, Diagnosis]
    """Diagnoses by `Job.key`; under ``""`` when there is no job."""
    cost_s: float = 0.0
    """Seconds it took to make the snapshot and the diagnoses."""
    pause_s: float = 1.0
    """Seconds until the next update at the latest; it comes sooner where a node reports a
    change."""
