"""How to observe, and what observing gives: the values that pass between a session and its user."""

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
    """Between two stacks of a process in its first half minute, where that is less."""
    hang_after: float = HANG_AFTER_S
    all_users: bool = False
    pids: tuple[int, ...] = ()
    readonly: bool = False
    """Nothing but reading /proc and non-blocking py-spy: a flight recorder answers by itself, but
    it is a thread of the rank that does."""
    allow_pause: bool = False
    """Let C frames of suspects be read where a rule asks for them: each is paused for a moment."""
    slurm_jobs: tuple[str, ...] = ()
    """Only what does not say that it is of another Slurm job than these."""
    slurm_step: str | None = None
    watch: bool = True
    """Without it nodes are only connected to, and nothing is asked of them by itself."""
    budget: float | None = None
    """Share of one core that a node may spend on passes over its processes, and again on stacks of
    those that move; None for what is meant for somebody who looks."""
    rest: float = QUIET
    """How long a process rests before its stack is taken, and what else its rest asks for."""

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
    """What is known at one moment, and what is concluded from it."""

    snapshot: Snapshot
    diagnoses: Mapping[str, Diagnosis]
    """By `Job.key`; under ``""`` when there is no job."""
    cost_s: float = 0.0
    """Seconds it took to make the snapshot and the diagnoses."""
    pause_s: float = 1.0
    """Seconds after which the next one comes at the latest; sooner where something new is told."""
