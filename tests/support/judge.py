"""A judge that finds out nothing, for tests of what comes before a verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.diagnosis import Diagnosis

if TYPE_CHECKING:
    from hangtop_core.model.snapshot import Job, Snapshot


def judge(snapshot: Snapshot, job: Job | None, hang_after: float) -> Diagnosis:
    """A diagnosis that gives back what it was told: ``hang_after`` as the time it has hung."""
    return Diagnosis("t", "t", "t", 0.0, "unknown", hang_after, None, None)
