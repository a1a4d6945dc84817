"""Diagnoses of all jobs of every snapshot."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hangtop_core.diagnosis import FAILED, REPORT_IT, SCHEMA, BlindSpot, Diagnosis, JobSummary
from hangtop_core.jobs.following import live_pids
from hangtop_core.judging.past_hangs import PastHangs
from hangtop_core.judging.steady import Steady
from hangtop_core.text.clean import clean, utc
from hangtop_core.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hangtop_core.model.snapshot import Job, Snapshot
    from hangtop_core.model.updates import Diagnose

log = logging.getLogger(__name__)


class Judge:
    """Diagnose all jobs of one snapshot after the other, on the session's thread."""

    def __init__(self, diagnose: Diagnose, hang_after: float) -> None:
        self._diagnose = diagnose
        self._hang_after = hang_after
        self._last: dict[str, Diagnosis] = {}
        self._past = PastHangs()
        self._steady: dict[str, Steady] = {}

    @property
    def settled(self) -> bool:
        """Whether time alone changes nothing: every job is judged and hung."""
        judged = self._last.values()
        return all(
            diagnosis.state == "hung" and diagnosis.verdicts for diagnosis in judged
        ) and bool(judged)

    @property
    def kept(self) -> frozenset[str]:
        """Keys of jobs that hung until their end: these stay listed."""
        return self._past.kept

    def before(self, snapshot: Snapshot) -> Mapping[str, Diagnosis]:
        """Return the last diagnoses of the jobs of a snapshot; a new job has none."""
        last = self._last
        return {job.key: last[job.key] for job in snapshot.jobs if job.key in last}

    def judge(self, snapshot: Snapshot) -> Mapping[str, Diagnosis]:
        """Diagnose every job; where that fails, the last diagnosis stays, with a blind spot."""
        diagnoses: dict[str, Diagnosis] = {}
        for job in snapshot.jobs or (None,):
            key = job.key if job is not None else ""
            try:
                new = self._diagnose(snapshot, job, self._hang_after)
                alive = live_pids(job) if job is not None else frozenset()
                diagnoses[key] = self._steady.setdefault(key, Steady()).take(
                    new, snapshot.at, alive
                )
            except Exception as error:
                log.exception("diagnosing job %r failed", key)
                diagnoses[key] = _failed(snapshot, job, error, self._last.get(key))
        self._last = diagnoses = self._past.add(snapshot, diagnoses)
        self._steady = {key: steady for key, steady in self._steady.items() if key in diagnoses}
        return dict(diagnoses)


def _failed(
    snapshot: Snapshot, job: Job | None, error: Exception, last: Diagnosis | None
) -> Diagnosis:
    """Return the last diagnosis with a blind spot: hangtop failed to judge since then."""
    why = clean(f"hangtop failed to judge what it saw: {type(error).__name__}: {error}", 300)
    if last is not None:
        spots = (spot for spot in last.blind_spots if spot.what != FAILED)
        why = f"it is as of {last.observed_at}, for since then {why}"
        return replace(last, blind_spots=(BlindSpot(FAILED, (), (), why, REPORT_IT), *spots))
    return Diagnosis(
        schema=SCHEMA,
        hangtop=__version__,
        observed_at=utc(snapshot.at),
        observed_for_s=round(max(snapshot.at - snapshot.observed_since, 0.0), 1),
        state="unknown",
        hung_for_s=None,
        watchdog_in_s=None,
        job=None
        if job is None
        else JobSummary(
            world_size=job.world_size,
            ranks_seen=tuple(sorted({rank.rank for rank in job.ranks})),
            nodes=job.nodes,
            launcher=None,
            id=None,
        ),
        blind_spots=(BlindSpot(FAILED, (), (), why, REPORT_IT),),
    )
