"""What happens to jobs over time: which have begun to hang, move again, were restarted, ended.

Pure: updates go in one after the other, and what is worth telling comes out, each thing once.
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
"""Seconds in which evidence for a hang still comes in after it was first called one: descriptors,
logs and recorders are read only then."""

ENDING_S = 3.0
"""Seconds in which it may still be found out why a job has ended: its logs are read only then."""

LOST_S = 60.0
"""Seconds after which a job that hung when the last of it was lost from sight counts as ended."""

WHOLE_S = 10.0
"""Seconds in which the other ranks of a job still show up after the first."""

Kind = Literal["job", "hang", "resumed", "restarted", "ended"]


class Happened(Struct, frozen=True):
    """One thing that happened to a job."""

    kind: Kind
    at: float
    job: Job
    diagnosis: Diagnosis | None = None
    """As of then; None where nothing was concluded. Of `ended`, its first verdict says why, where
    that was seen; there is none where all was well."""
    after_s: float | None = None
    """Of `resumed`: how long it hung. Of `restarted` and `ended`: the same, if it did hang."""


class _Known:
    """A job that is followed."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.ranks: frozenset[Identity] = frozenset()
        """The ranks that were alive when it last had some."""
        self.over = False
        self.ending: float | None = None
        """Since when all of its processes are gone, until that is told."""
        self.first_at = 0.0
        self.introduced = False
        self.suspected: float | None = None
        self.cause: str | None = None
        """Of the first verdict in the last update, while it is suspected to hang."""
        self.told: float | None = None
        """When its present hang was told."""
        self.hung: frozenset[Identity] = frozenset()
        """The ranks that were alive then."""
        self.moves_since: float | None = None
        """When it was first seen to make progress after that, until that is told."""
        self.hung_since = 0.0
        self.told_since = 0.0
        """Since when the job hung in the hang that was told last."""

    def forget_hang(self, at: float) -> float | None:
        """Return how long the hang that was told has lasted, None without one; it is over."""
        lasted = None if self.told is None else max(at - self.hung_since, 0.0)
        self.suspected = self.told = self.cause = self.moves_since = None
        return lasted

    def resumed(self, diagnosis: Diagnosis | None) -> list[Happened]:
        """Return that it went on, if it was seen to; the hang that was told is over."""
        if self.moves_since is None:
            return []
        at, after = self.moves_since, self.forget_hang(self.moves_since)
        return [Happened("resumed", at, self.job, diagnosis, after)]


class Hangs:
    """Follows all jobs of a session."""

    def __init__(self) -> None:
        self._known: list[_Known] = []
        self.any = False
        """Whether there was a job so far."""

    @property
    def running(self) -> bool:
        """Whether a job is there that has not ended."""
        return any(not one.over for one in self._known)

    def clock_was_set(self, by: float) -> None:
        """Put what was noted on the clock as it is now: ``by`` seconds later than before."""
        for known in self._known:
            known.first_at += by
            known.hung_since += by
            known.told_since += by
            known.suspected = None if known.suspected is None else known.suspected + by
            known.told = None if known.told is None else known.told + by
            moves = known.moves_since
            known.moves_since = None if moves is None else moves + by
            known.ending = None if known.ending is None else known.ending + by

    def fold(self, update: Update, key: str | None = None) -> list[Happened]:
        """Return what has happened since the last update.

        Args:
            update: later than all before.
            key: follow only jobs with this key, name or run id.
        """
        snapshot = update.snapshot
        found: list[Happened] = []
        kept: list[_Known] = []
        followed: set[str] = set()
        for known in self._known:
            job = follow(known.job, snapshot)
            if job is not None and job.key in followed:
                continue  # two that were one all along: the first goes on
            if job is None:
                if not known.over:
                    found += _introduced(known, None, snapshot.at, anyway=True)
                    after = known.forget_hang(snapshot.at)
                    found.append(Happened("ended", snapshot.at, known.job, None, after))
                continue
            known.job = job
            followed.add(job.key)
            kept.append(known)
            found += self._news(known, update)
        for job in training(snapshot):
            if job.key not in followed and (key is None or answers_to(job, key)):
                known = _Known(job)
                known.first_at = snapshot.at
                kept.append(known)
                found += self._news(known, update)
        self._known = kept
        self.any = self.any or bool(kept)
        return found

    def _news(self, known: _Known, update: Update) -> list[Happened]:
        job, at = known.job, update.snapshot.at
        diagnosis = update.diagnoses.get(job.key)
        alive = live_pids(job)
        news: list[Happened] = []
        if alive and diagnosis is not None and _is_lost(job, diagnosis, at):
            news += [] if known.over else _ended(known, diagnosis, at)
            known.over = True
        elif alive:
            news += _restarted(known, alive, diagnosis, at)
        elif known.ranks and all(launcher.ended for launcher in job.launchers):
            return _all_left(known, diagnosis, at)
        if diagnosis is not None:
            news += _judged(known, diagnosis, at)
        return [*_introduced(known, diagnosis, at, anyway=bool(news)), *news]


def _restarted(
    known: _Known, alive: frozenset[Identity], diagnosis: Diagnosis | None, at: float
) -> list[Happened]:
    """Note the ranks that are alive; return that the job was restarted, where none of them was."""
    if known.over and known.ranks & alive:
        known.over = False  # its nodes have come back
    news: list[Happened] = []
    if known.over or (known.ranks and not known.ranks & alive):
        after = known.forget_hang(at)
        past = diagnosis.past_attempts if diagnosis is not None else ()
        after = past[-1].ended.after_hanging_s if past else after
        news.append(Happened("restarted", at, known.job, diagnosis, after))
        known.over = False
    known.ranks = alive
    known.ending = None
    return news


def _all_left(known: _Known, diagnosis: Diagnosis | None, at: float) -> list[Happened]:
    """Return that a job has ended, once its cause is known or nothing more comes."""
    if not known.over and _may_tell_why(known, diagnosis, at):
        return []
    news = [] if known.over else _ended(known, diagnosis, at)
    known.over = True
    return [*_introduced(known, diagnosis, at, anyway=True), *news]


def _ended(known: _Known, diagnosis: Diagnosis | None, at: float) -> list[Happened]:
    """That a job has ended; before that, that it hung until then, where that was not told yet."""
    ended = diagnosis.ended if diagnosis is not None else None
    found: list[Happened] = []
    if ended is None or ended.after_hanging_s is None:
        found += known.resumed(diagnosis)
    after = known.forget_hang(at)
    if ended is not None and ended.after_hanging_s is not None:
        after, since = ended.after_hanging_s, ended.at - ended.after_hanging_s
        if since > known.told_since + STALLED_AFTER_S:
            known.told_since = since
            found.append(Happened("hang", at, known.job, diagnosis))
    elif any(rank.process.exit_code == 0 for rank in known.job.ranks):
        after = None  # it went on, and all was well, before that could be seen
    return [*found, Happened("ended", at, known.job, diagnosis, after)]


def _is_lost(job: Job, diagnosis: Diagnosis, at: float) -> bool:
    """Whether a job hung when it was last seen, and will not come back: Slurm says so, or time."""
    lost = diagnosis.hung_until_end and diagnosis.state != "exited"
    long_ago = diagnosis.ended is not None and at - diagnosis.ended.at >= LOST_S
    return lost and (long_ago or bool(job.slurm_end))


def _may_tell_why(known: _Known, diagnosis: Diagnosis | None, at: float) -> bool:
    """Whether it may yet come out why a job has ended."""
    known.ending = at if known.ending is None else known.ending
    if diagnosis is not None and diagnosis.state == "exited" and _says_why(diagnosis):
        return False
    return at - known.ending < ENDING_S


def _says_why(diagnosis: Diagnosis) -> bool:
    """Whether it is known why a job has ended: of one that hung, what has ended it."""
    if diagnosis.hung_until_end:
        return diagnosis.ended is not None and bool(diagnosis.ended.by)
    return bool(diagnosis.verdicts)


def _introduced(
    known: _Known, diagnosis: Diagnosis | None, at: float, *, anyway: bool
) -> list[Happened]:
    """That a job is there, once it is whole, or does not become so, or has something to tell."""
    whole = len(known.job.ranks) == (known.job.world_size or -1)
    if known.introduced or not (whole or anyway or at - known.first_at >= WHOLE_S):
        return []
    known.introduced = True
    return [Happened("job", at, known.job, diagnosis)]


def _judged(known: _Known, diagnosis: Diagnosis, at: float) -> list[Happened]:
    found = known.resumed(diagnosis) if _is_over(known, diagnosis, at) else []
    if diagnosis.state != "hung":
        known.suspected = known.cause = None
        return found
    if known.told is not None:
        return found
    cause = diagnosis.verdicts[0].cause if diagnosis.verdicts else None
    settled = cause is not None and cause == known.cause and not _asks(diagnosis)
    known.cause = cause
    if known.suspected is None:
        known.suspected = at
    if settled or at - known.suspected >= EVIDENCE_S:
        known.told, known.hung = at, known.ranks
        known.hung_since = known.told_since = at - (diagnosis.hung_for_s or 0.0)
        found.append(Happened("hang", at, known.job, diagnosis))
    return found


def _is_over(known: _Known, diagnosis: Diagnosis, at: float) -> bool:
    """Whether the hang that was told is over: ranks also move as they give up, and leave then."""
    if known.told is None or not moved_since(known.told, diagnosis, at):
        known.moves_since = None
        return False
    if known.moves_since is None:
        known.moves_since = at - (diagnosis.stalled_for_s or 0.0)
    lasts = at - known.moves_since >= RECOVERED_S and known.hung <= live_pids(known.job)
    return lasts or diagnosis.state == "hung"


def _asks(diagnosis: Diagnosis) -> bool:
    """Whether something is under way that a rule has asked for."""
    return any(need.state == "asked" for need in diagnosis.needs)
