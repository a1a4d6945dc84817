"""Events of jobs over time: a job appears, hangs, resumes, is restarted, or ends.

Pure: updates go in one after the other; each event is returned once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from hangtop_core.diagnosis import STALLED_AFTER_S, Diagnosis
from hangtop_core.jobs.following import Identity, follow, live_pids
from hangtop_core.jobs.named import answers_to, training
from hangtop_core.judging.past_hangs import RECOVERED_S
from hangtop_core.judging.steady import moved_since
from hangtop_core.model.snapshot import Job

if TYPE_CHECKING:
    from hangtop_core.model.updates import Update

EVIDENCE_S = 10.0
"""Seconds during which evidence for a hang still arrives after the first verdict: descriptors, logs
and recorders are read only then."""

ENDING_S = 3.0
"""Seconds during which the cause of a job's end may still be found: its logs are read only then."""

LOST_S = 60.0
"""Seconds after which a job counts as ended when hangtop lost sight of it while it hung."""

WHOLE_S = 10.0
"""Seconds during which the other ranks of a job still appear after the first."""

Kind = Literal["job", "hang", "resumed", "restarted", "ended"]


class Happened(Struct, frozen=True):
    """An event of a job."""

    kind: Kind
    at: float
    job: Job
    diagnosis: Diagnosis | None = None
    """The diagnosis at that time; None where nothing was concluded. For `ended`, the first verdict
    gives the cause if it is known; there is no verdict where all was well."""
    after_s: float | None = None
    """Seconds for which the job hung before it resumed, was restarted or ended; None if it did not
    hang."""


class _Tracked:
    """A job that is followed."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.ranks: frozenset[Identity] = frozenset()
        """The ranks that were alive when the job last had live ranks."""
        self.over = False
        self.ending: float | None = None
        """When all processes of the job were first gone; None once the end is reported."""
        self.first_at = 0.0
        self.introduced = False
        self.suspected: float | None = None
        self.cause: str | None = None
        """The cause of the first verdict in the last update, while the job is suspected to hang."""
        self.reported: float | None = None
        """When the present hang was reported."""
        self.hung: frozenset[Identity] = frozenset()
        """The ranks that were alive when the hang was reported."""
        self.moves_since: float | None = None
        """When the job first made progress after the reported hang; None once that is reported."""
        self.hung_since = 0.0
        self.reported_since = 0.0
        """Start of the hang that was reported last."""

    def forget_hang(self, at: float) -> float | None:
        """End the reported hang; return how long it lasted in seconds, None without a hang."""
        lasted = None if self.reported is None else max(at - self.hung_since, 0.0)
        self.suspected = self.reported = self.cause = self.moves_since = None
        return lasted

    def resumed(self, diagnosis: Diagnosis | None) -> list[Happened]:
        """Return the event that the job resumed, if it did; the reported hang is over."""
        if self.moves_since is None:
            return []
        at, after = self.moves_since, self.forget_hang(self.moves_since)
        return [Happened("resumed", at, self.job, diagnosis, after)]


class Hangs:
    """Follow all jobs of a session."""

    def __init__(self) -> None:
        self._tracked: list[_Tracked] = []
        self.any = False
        """Whether any job has appeared so far."""

    @property
    def running(self) -> bool:
        """Whether a job exists that has not ended."""
        return any(not tracked.over for tracked in self._tracked)

    def clock_was_set(self, by: float) -> None:
        """Shift all noted times by ``by`` seconds after the clock was set."""
        for tracked in self._tracked:
            tracked.first_at += by
            tracked.hung_since += by
            tracked.reported_since += by
            tracked.suspected = None if tracked.suspected is None else tracked.suspected + by
            tracked.reported = None if tracked.reported is None else tracked.reported + by
            moves = tracked.moves_since
            tracked.moves_since = None if moves is None else moves + by
            tracked.ending = None if tracked.ending is None else tracked.ending + by

    def fold(self, update: Update, key: str | None = None) -> list[Happened]:
        """Return the events since the last update.

        Args:
            update: later than all before.
            key: follow only jobs with this key, name or run id.
        """
        snapshot = update.snapshot
        events: list[Happened] = []
        kept: list[_Tracked] = []
        followed: set[str] = set()
        for tracked in self._tracked:
            job = follow(tracked.job, snapshot)
            if job is not None and job.key in followed:
                continue  # two entries are the same job: the first is kept
            if job is None:
                if not tracked.over:
                    events += _introduced(tracked, None, snapshot.at, anyway=True)
                    after = tracked.forget_hang(snapshot.at)
                    events.append(Happened("ended", snapshot.at, tracked.job, None, after))
                continue
            tracked.job = job
            followed.add(job.key)
            kept.append(tracked)
            events += self._news(tracked, update)
        for job in training(snapshot):
            if job.key not in followed and (key is None or answers_to(job, key)):
                tracked = _Tracked(job)
                tracked.first_at = snapshot.at
                kept.append(tracked)
                events += self._news(tracked, update)
        self._tracked = kept
        self.any = self.any or bool(kept)
        return events

    def _news(self, tracked: _Tracked, update: Update) -> list[Happened]:
        job, at = tracked.job, update.snapshot.at
        diagnosis = update.diagnoses.get(job.key)
        alive = live_pids(job)
        news: list[Happened] = []
        if alive and diagnosis is not None and _is_lost(job, diagnosis, at):
            news += [] if tracked.over else _ended(tracked, diagnosis, at)
            tracked.over = True
        elif alive:
            news += _restarted(tracked, alive, diagnosis, at)
        elif tracked.ranks and all(launcher.ended for launcher in job.launchers):
            return _all_left(tracked, diagnosis, at)
        if diagnosis is not None:
            news += _judged(tracked, diagnosis, at)
        return [*_introduced(tracked, diagnosis, at, anyway=bool(news)), *news]


def _restarted(
    tracked: _Tracked, alive: frozenset[Identity], diagnosis: Diagnosis | None, at: float
) -> list[Happened]:
    """Note the live ranks; return a restart event if none of the former ranks is alive."""
    if tracked.over and tracked.ranks & alive:
        tracked.over = False  # its nodes have come back
    news: list[Happened] = []
    if tracked.over or (tracked.ranks and not tracked.ranks & alive):
        after = tracked.forget_hang(at)
        past = diagnosis.past_attempts if diagnosis is not None else ()
        after = past[-1].ended.after_hanging_s if past else after
        news.append(Happened("restarted", at, tracked.job, diagnosis, after))
        tracked.over = False
    tracked.ranks = alive
    tracked.ending = None
    return news


def _all_left(tracked: _Tracked, diagnosis: Diagnosis | None, at: float) -> list[Happened]:
    """Return that a job has ended, once its cause is known or nothing more arrives."""
    if not tracked.over and _may_tell_why(tracked, diagnosis, at):
        return []
    news = [] if tracked.over else _ended(tracked, diagnosis, at)
    tracked.over = True
    return [*_introduced(tracked, diagnosis, at, anyway=True), *news]


def _ended(tracked: _Tracked, diagnosis: Diagnosis | None, at: float) -> list[Happened]:
    """Return that a job has ended, after an unreported hang that lasted until then."""
    ended = diagnosis.ended if diagnosis is not None else None
    events: list[Happened] = []
    if ended is None or ended.after_hanging_s is None:
        events += tracked.resumed(diagnosis)
    after = tracked.forget_hang(at)
    if ended is not None and ended.after_hanging_s is not None:
        after, since = ended.after_hanging_s, ended.at - ended.after_hanging_s
        if since > tracked.reported_since + STALLED_AFTER_S:
            tracked.reported_since = since
            events.append(Happened("hang", at, tracked.job, diagnosis))
    elif any(rank.process.exit_code == 0 for rank in tracked.job.ranks):
        after = None  # the job resumed and ended well between two snapshots
    return [*events, Happened("ended", at, tracked.job, diagnosis, after)]


def _is_lost(job: Job, diagnosis: Diagnosis, at: float) -> bool:
    """Whether a job hung when last seen and will not return: Slurm or the elapsed time says so."""
    lost = diagnosis.hung_until_end and diagnosis.state != "exited"
    long_ago = diagnosis.ended is not None and at - diagnosis.ended.at >= LOST_S
    return lost and (long_ago or bool(job.slurm_end))


def _may_tell_why(tracked: _Tracked, diagnosis: Diagnosis | None, at: float) -> bool:
    """Whether the cause of a job's end may still become known."""
    tracked.ending = at if tracked.ending is None else tracked.ending
    if diagnosis is not None and diagnosis.state == "exited" and _says_why(diagnosis):
        return False
    return at - tracked.ending < ENDING_S


def _says_why(diagnosis: Diagnosis) -> bool:
    """Whether the cause of a job's end is known; for a job that hung, what ended it."""
    if diagnosis.hung_until_end:
        return diagnosis.ended is not None and bool(diagnosis.ended.by)
    return bool(diagnosis.verdicts)


def _introduced(
    tracked: _Tracked, diagnosis: Diagnosis | None, at: float, *, anyway: bool
) -> list[Happened]:
    """Return the event that a job appeared: once complete, or after `WHOLE_S`, or with others."""
    whole = len(tracked.job.ranks) == (tracked.job.world_size or -1)
    if tracked.introduced or not (whole or anyway or at - tracked.first_at >= WHOLE_S):
        return []
    tracked.introduced = True
    return [Happened("job", at, tracked.job, diagnosis)]


def _judged(tracked: _Tracked, diagnosis: Diagnosis, at: float) -> list[Happened]:
    events = tracked.resumed(diagnosis) if _is_over(tracked, diagnosis, at) else []
    if diagnosis.state != "hung":
        tracked.suspected = tracked.cause = None
        return events
    if tracked.reported is not None:
        return events
    cause = diagnosis.verdicts[0].cause if diagnosis.verdicts else None
    settled = cause is not None and cause == tracked.cause and not _asks(diagnosis)
    tracked.cause = cause
    if tracked.suspected is None:
        tracked.suspected = at
    if settled or at - tracked.suspected >= EVIDENCE_S:
        tracked.reported, tracked.hung = at, tracked.ranks
        tracked.hung_since = tracked.reported_since = at - (diagnosis.hung_for_s or 0.0)
        events.append(Happened("hang", at, tracked.job, diagnosis))
    return events


def _is_over(tracked: _Tracked, diagnosis: Diagnosis, at: float) -> bool:
    """Whether the reported hang is over; ranks also move when they give up and then leave."""
    if tracked.reported is None or not moved_since(tracked.reported, diagnosis, at):
        tracked.moves_since = None
        return False
    if tracked.moves_since is None:
        tracked.moves_since = at - (diagnosis.stalled_for_s or 0.0)
    lasts = at - tracked.moves_since >= RECOVERED_S and tracked.hung <= live_pids(tracked.job)
    return lasts or diagnosis.state == "hung"


def _asks(diagnosis: Diagnosis) -> bool:
    """Whether evidence that a rule requested is still being collected."""
    return any(need.state == "asked" for need in diagnosis.needs)
