"""Causes of hangs, kept until the job makes progress, also after it has ended.

The evidence lives in the processes and dies with them: the remains only show how the ranks ended.
Pure: snapshots go in one after the other, with the diagnoses of each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from hangtop_core.diagnosis import MAKES_PROGRESS, STALLED_AFTER_S, Ended, PastAttempt
from hangtop_core.jobs.following import attempt_pids, follow
from hangtop_core.judging.last_verdict import Hang, outlived
from hangtop_core.logs.judging.statuses import by_statuses, with_printed
from hangtop_core.model.node.states import UNSEEN
from hangtop_core.model.snapshot import ENDED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hangtop_core.diagnosis import Attempt, Diagnosis, Verdict
    from hangtop_core.jobs.following import Identity
    from hangtop_core.model.snapshot import Job, Rank, Snapshot

RECOVERED_S = 10.0
"""Seconds of progress after which a hang is over. A rank that gives up also runs for some seconds:
it prints a traceback and ends."""
RAN_S = 1.0
"""Seconds after the last verdict on a hang from which a rank that runs does so for another
reason."""
GUESS = 0.5
"""Confidence up to which a verdict on an ended job does not rule out that it ended well."""
MOST_ATTEMPTS = 8
"""Number of past attempts that are kept: torchrun may restart a job without limit."""
MOST_KEPT = 4
"""Number of jobs that hung until their end and stay listed: the newest."""


class _Past(NamedTuple):
    """An attempt that is over."""

    attempt: PastAttempt
    sources: frozenset[float]
    """Times of the snapshots that this attempt is known from."""
    ranks: frozenset[Identity]


class _Followed:
    """A job that is followed."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.ranks: frozenset[Identity] = frozenset()
        """All ranks seen of the newest attempt."""
        self.hang: Hang | None = None
        self.progress_since: float | None = None
        """When the job first made progress after the hang."""
        self.freed = False
        """Whether all culprits of the hang were then seen to run, before any rank left."""
        self.attempt: Attempt | None = None
        self.last: Diagnosis | None = None
        """The last diagnosis of the running attempt, once one of its ranks had left."""
        self.last_at = 0.0
        self.past: tuple[_Past, ...] = ()

    @property
    def sources(self) -> frozenset[float]:
        """Times of the snapshots from which anything is kept."""
        return self.own_sources.union(*(past.sources for past in self.past))

    @property
    def own_sources(self) -> frozenset[float]:
        """Times of the snapshots from which anything of the running attempt is kept."""
        hang = () if self.hang is None else (self.hang.at,)
        return frozenset(hang if self.last is None else (*hang, self.last_at))


class PastHangs:
    """Follow jobs, and add their earlier hangs to their diagnoses."""

    def __init__(self) -> None:
        self._followed: list[_Followed] = []
        self.kept: frozenset[str] = frozenset()
        """Keys of jobs that hung until their end, and are to stay listed."""

    def add(self, snapshot: Snapshot, diagnoses: Mapping[str, Diagnosis]) -> dict[str, Diagnosis]:
        """Return the diagnoses of a snapshot, later than all before, with earlier hangs added."""
        judged = dict(diagnoses)
        followed = self._follow(snapshot)
        for entry in followed:
            if entry.job.key in judged:
                judged[entry.job.key] = _judged(entry, snapshot, judged[entry.job.key])
        self._followed = followed
        ends = {
            key: diagnosis.ended.at
            for key, diagnosis in judged.items()
            if diagnosis.ended and diagnosis.hung_until_end
        }
        self.kept = frozenset(sorted(ends, key=lambda key: -ends[key])[:MOST_KEPT])
        return judged

    @property
    def sources(self) -> frozenset[float]:
        """Times of the snapshots from which anything is kept."""
        return frozenset().union(*(entry.sources for entry in self._followed))

    def _follow(self, snapshot: Snapshot) -> list[_Followed]:
        """Return the jobs of a snapshot, each with its earlier state."""
        left = {job.key: job for job in snapshot.jobs}
        followed = []
        for entry in self._followed:
            job = follow(entry.job, snapshot)
            if job is not None and left.pop(job.key, None) is not None:
                changed, entry.job = job is not entry.job, job
                if changed:
                    _note_ranks(entry, snapshot.at)
                followed.append(entry)
        for job in left.values():
            followed.append(new := _Followed(job))
            new.ranks = attempt_pids(job)
        return followed


def _note_ranks(followed: _Followed, at: float) -> None:
    """Note the present ranks; a new attempt has begun where none of the former ranks is left.

    A program that was named, and was shown until it started ranks, was no attempt.
    """
    ranks = attempt_pids(followed.job)
    followed.ranks -= {launcher.identity for launcher in followed.job.launchers}
    if ranks and followed.ranks and not ranks & followed.ranks:
        past = _Past(_past_attempt(followed, at), followed.own_sources, followed.ranks)
        followed.past = (*followed.past, past)[-MOST_ATTEMPTS:]
        followed.hang = followed.progress_since = followed.last = None
        followed.ranks = frozenset()
    followed.ranks |= ranks


def _past_attempt(followed: _Followed, at: float) -> PastAttempt:
    """Return the attempt that is over and has failed; a hang is its cause."""
    last, hang = followed.last, followed.hang
    ended = last.ended if last is not None and last.ended is not None else Ended(round(at, 3))
    if hang is not None and (last is None or not last.hung_until_end):
        last = outlived(hang, last or hang.diagnosis, ended)
        ended = last.ended or ended
    number = followed.attempt.number if followed.attempt is not None else None
    return PastAttempt(number, ended, last.verdicts if last is not None else ())


def _with_cause(past: _Past, job: Job, snapshot: Snapshot) -> _Past:
    """Add the end of an attempt where its exit statuses have become known since."""
    attempt = past.attempt
    left = () if attempt.ended.by else [rank for rank in job.former if rank.identity in past.ranks]
    by = by_statuses(with_printed(left, snapshot.outputs)) if left else ""
    if not by:
        return past
    return past._replace(attempt=replace(attempt, ended=replace(attempt.ended, by=by)))


def _judged(followed: _Followed, snapshot: Snapshot, diagnosis: Diagnosis) -> Diagnosis:
    """Return the diagnosis of a job with its earlier hang and its past attempts."""
    followed.past = tuple(_with_cause(past, followed.job, snapshot) for past in followed.past)
    if followed.past:
        diagnosis = replace(diagnosis, past_attempts=tuple(past.attempt for past in followed.past))
    followed.attempt = diagnosis.attempt or followed.attempt
    if diagnosis.hung_until_end:  # concluded before, as in a capture
        followed.last, followed.last_at = diagnosis, snapshot.at
        return diagnosis
    _note_hang(followed, snapshot, diagnosis)
    hang, ended = followed.hang, _end(followed.job, snapshot, diagnosis)
    if hang is not None and ended is not None and _lasted(followed, hang, diagnosis):
        diagnosis = outlived(hang, diagnosis, ended)
    if ended is not None or any(rank.state in ENDED for rank in followed.job.ranks):
        followed.last, followed.last_at = diagnosis, snapshot.at
    return diagnosis


def _note_hang(followed: _Followed, snapshot: Snapshot, diagnosis: Diagnosis) -> None:
    """Keep the newest verdict on a hang; forget a hang that is over."""
    if diagnosis.state == "exited" or _out_of_sight(followed.job, snapshot):
        return
    if followed.hang is not None and _moved(followed.hang, diagnosis, snapshot.at):
        _note_progress(followed, followed.hang, diagnosis, snapshot.at)
    if diagnosis.state != "hung":
        return
    gone = frozenset(rank.process.identity for rank in followed.job.ranks if rank.state in ENDED)
    hang = followed.hang
    if hang is None or gone <= hang.gone or not _explained(hang.diagnosis):
        since = snapshot.at - (diagnosis.hung_for_s or 0.0)
        followed.hang = Hang(diagnosis, snapshot.at, since, gone)
        followed.progress_since, followed.freed = None, False


def _note_progress(followed: _Followed, hang: Hang, diagnosis: Diagnosis, at: float) -> None:
    """Note progress after a hang, which is over once the job hangs anew or has recovered."""
    since = at if followed.progress_since is None else followed.progress_since
    followed.progress_since = since
    is_whole = not any(rank.state in ENDED for rank in followed.job.ranks)
    followed.freed = followed.freed or (is_whole and _freed(hang, followed.job.ranks, 0.0))
    if diagnosis.state == "hung" or at - since >= RECOVERED_S:
        followed.hang = None


def _moved(hang: Hang, diagnosis: Diagnosis, at: float) -> bool:
    """Whether a job was seen to make progress after a verdict on its hang."""
    if diagnosis.state == "hung":
        return at - (diagnosis.hung_for_s or 0.0) > hang.at + STALLED_AFTER_S
    if diagnosis.state in MAKES_PROGRESS:
        return True
    stalled = diagnosis.stalled_for_s
    return stalled is not None and at - stalled > hang.at + STALLED_AFTER_S


def _explained(diagnosis: Diagnosis) -> bool:
    return bool(diagnosis.verdicts) and diagnosis.verdicts[0].cause != "unknown"


def _end(job: Job, snapshot: Snapshot, diagnosis: Diagnosis) -> Ended | None:
    """Return when and by what a job ended or was lost from sight; None while any part is seen."""
    if diagnosis.state == "exited":
        return diagnosis.ended or Ended(snapshot.at)
    if not _out_of_sight(job, snapshot):
        return None
    lost = [node for node in snapshot.nodes if node.name in job.nodes and node.state in UNSEEN]
    at = max((node.last_seen or snapshot.at for node in lost), default=snapshot.at)
    why = next((node.cause for node in lost if node.cause), "")
    lost_by = "all of its nodes were lost" + f": {why}" * bool(why)
    return Ended(round(at, 3), job.slurm_end or lost_by)


def _out_of_sight(job: Job, snapshot: Snapshot) -> bool:
    """Whether no rank is seen alive, and some ranks are on nodes that do not answer."""
    unseen = {node.name for node in snapshot.nodes if node.state in UNSEEN}
    left = [rank for rank in job.ranks if not rank.ended] if unseen else []
    return bool(left) and all(rank.node in unseen for rank in left)


def _lasted(followed: _Followed, hang: Hang, diagnosis: Diagnosis) -> bool:
    """Whether a hang lasted until the end of its job.

    A job may also have resumed and ended well between two snapshots. Where no exit status is known,
    the culprits have then moved; other ranks also move when they give up.
    """
    ranks = [rank for rank in followed.job.ranks if rank.process.identity not in hang.gone]
    codes = {rank.process.exit_code for rank in ranks}
    # torchrun restarts ranks only after a failure.
    restarts = followed.attempt is not None
    failed = any(codes - {None}) or any(
        v.confidence > GUESS and (restarts or _by_more_than_absence(v)) for v in diagnosis.verdicts
    )
    if failed or 0 in codes:
        return failed
    return followed.progress_since is None or not (followed.freed or _freed(hang, ranks, RAN_S))


def _by_more_than_absence(verdict: Verdict) -> bool:
    """Whether a log or the kernel shows that the job failed, beyond a missing rank."""
    return any(evidence.source in ("log", "kernel") for evidence in verdict.evidence)


def _freed(hang: Hang, ranks: Sequence[Rank], after: float) -> bool:
    """Whether the culprits of a hang, or all ranks without any, ran ``after`` seconds past it."""
    named = {
        culprit.rank for verdict in hang.diagnosis.verdicts[:1] for culprit in verdict.culprits
    }
    blamed = [rank for rank in ranks if rank.rank in named] or ranks
    return all((rank.moved_at or 0.0) > hang.at + after for rank in blamed)
