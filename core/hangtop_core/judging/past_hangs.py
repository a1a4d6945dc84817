"""What jobs hung by, kept until they make progress again, also when they have ended meanwhile.

Why a job hung is in its processes and goes with them: what is concluded of what is left is only
how they ended. Pure: snapshots go in one after the other, with what was concluded of each.
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
"""Seconds of progress after which a hang is over. A rank that gives up moves for some, too: it
prints a traceback and ends."""
RAN_S = 1.0
"""Seconds after the last verdict on a hang from which on a rank has run for another reason."""
GUESS = 0.5
"""Confidence of a verdict on a job that has ended which may as well have ended well."""
MOST_ATTEMPTS = 8
"""Past attempts that are kept: torchrun may be told to start a job again without end."""
MOST_KEPT = 4
"""Jobs that hung until their end and stay listed: the newest of them."""


class _Past(NamedTuple):
    """An attempt that is over."""

    attempt: PastAttempt
    sources: frozenset[float]
    """When the snapshots were taken that it is known from."""
    ranks: frozenset[Identity]


class _Followed:
    """A job that is followed."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.ranks: frozenset[Identity] = frozenset()
        """All that were seen of its newest attempt."""
        self.hang: Hang | None = None
        self.progress_since: float | None = None
        """When it was first seen to make progress after that."""
        self.freed = False
        """Whether all that are to blame for it were then seen to run, before any rank left."""
        self.attempt: Attempt | None = None
        self.last: Diagnosis | None = None
        """What was last said of the attempt that runs, once a rank of it had left."""
        self.last_at = 0.0
        self.past: tuple[_Past, ...] = ()

    @property
    def sources(self) -> frozenset[float]:
        """When the snapshots were taken of which anything is kept."""
        return self.own_sources.union(*(past.sources for past in self.past))

    @property
    def own_sources(self) -> frozenset[float]:
        """The same of the attempt that runs."""
        hang = () if self.hang is None else (self.hang.at,)
        return frozenset(hang if self.last is None else (*hang, self.last_at))


class PastHangs:
    """Follows jobs, and adds to what is concluded of them what they hung by before."""

    def __init__(self) -> None:
        self._followed: list[_Followed] = []
        self.kept: frozenset[str] = frozenset()
        """Keys of jobs that hung until their end, and are to stay listed."""

    def add(self, snapshot: Snapshot, diagnoses: Mapping[str, Diagnosis]) -> dict[str, Diagnosis]:
        """Return the diagnoses of a snapshot, later than all before, with what is known beside."""
        told = dict(diagnoses)
        followed = self._follow(snapshot)
        for one in followed:
            if one.job.key in told:
                told[one.job.key] = _judged(one, snapshot, told[one.job.key])
        self._followed = followed
        ends = {key: one.ended.at for key, one in told.items() if one.ended and one.hung_until_end}
        self.kept = frozenset(sorted(ends, key=lambda key: -ends[key])[:MOST_KEPT])
        return told

    @property
    def sources(self) -> frozenset[float]:
        """When the snapshots were taken of which anything is kept."""
        return frozenset().union(*(one.sources for one in self._followed))

    def _follow(self, snapshot: Snapshot) -> list[_Followed]:
        """The jobs of a snapshot, each as it was known before."""
        left = {job.key: job for job in snapshot.jobs}
        followed = []
        for one in self._followed:
            job = follow(one.job, snapshot)
            if job is not None and left.pop(job.key, None) is not None:
                changed, one.job = job is not one.job, job
                if changed:
                    _note_ranks(one, snapshot.at)
                followed.append(one)
        for job in left.values():
            followed.append(new := _Followed(job))
            new.ranks = attempt_pids(job)
        return followed


def _note_ranks(one: _Followed, at: float) -> None:
    """Note which ranks there are; where none of those before is, an attempt has begun anew.

    A program that was named, and was shown until it started ranks, was no attempt.
    """
    ranks = attempt_pids(one.job)
    one.ranks -= {launcher.identity for launcher in one.job.launchers}
    if ranks and one.ranks and not ranks & one.ranks:
        past = _Past(_past_attempt(one, at), one.own_sources, one.ranks)
        one.past = (*one.past, past)[-MOST_ATTEMPTS:]
        one.hang = one.progress_since = one.last = None
        one.ranks = frozenset()
    one.ranks |= ranks


def _past_attempt(one: _Followed, at: float) -> PastAttempt:
    """What is known of the attempt that is over, which has failed: a hang is why."""
    last, hang = one.last, one.hang
    ended = last.ended if last is not None and last.ended is not None else Ended(round(at, 3))
    if hang is not None and (last is None or not last.hung_until_end):
        last = outlived(hang, last or hang.diagnosis, ended)
        ended = last.ended or ended
    number = one.attempt.number if one.attempt is not None else None
    return PastAttempt(number, ended, last.verdicts if last is not None else ())


def _with_cause(past: _Past, job: Job, snapshot: Snapshot) -> _Past:
    """Add what ended an attempt, where its exit statuses have become known since."""
    attempt = past.attempt
    left = () if attempt.ended.by else [one for one in job.former if one.identity in past.ranks]
    by = by_statuses(with_printed(left, snapshot.outputs)) if left else ""
    if not by:
        return past
    return past._replace(attempt=replace(attempt, ended=replace(attempt.ended, by=by)))


def _judged(one: _Followed, snapshot: Snapshot, diagnosis: Diagnosis) -> Diagnosis:
    """What is said of a job now, with what it hung by and its past attempts."""
    one.past = tuple(_with_cause(past, one.job, snapshot) for past in one.past)
    if one.past:
        diagnosis = replace(diagnosis, past_attempts=tuple(past.attempt for past in one.past))
    one.attempt = diagnosis.attempt or one.attempt
    if diagnosis.hung_until_end:  # it was said before, as in a capture
        one.last, one.last_at = diagnosis, snapshot.at
        return diagnosis
    _note_hang(one, snapshot, diagnosis)
    hang, ended = one.hang, _end(one.job, snapshot, diagnosis)
    if hang is not None and ended is not None and _lasted(one, hang, diagnosis):
        diagnosis = outlived(hang, diagnosis, ended)
    if ended is not None or any(rank.state in ENDED for rank in one.job.ranks):
        one.last, one.last_at = diagnosis, snapshot.at
    return diagnosis


def _note_hang(followed: _Followed, snapshot: Snapshot, diagnosis: Diagnosis) -> None:
    """Keep the newest verdict on a hang; let go of one that is over."""
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
    """When and by what a job ended, or was lost from sight; None while any of it is seen."""
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
    """Whether no rank is seen to live, and some are on nodes that nothing is seen of any more."""
    unseen = {node.name for node in snapshot.nodes if node.state in UNSEEN}
    left = [rank for rank in job.ranks if not rank.ended] if unseen else []
    return bool(left) and all(rank.node in unseen for rank in left)


def _lasted(one: _Followed, hang: Hang, diagnosis: Diagnosis) -> bool:
    """Whether a hang lasted until the end of its job.

    A job may also have gone on and come to a good end, more quickly than it is looked at. Where
    nothing tells how its ranks ended, those that were to blame have then moved: others also move as
    they give up.
    """
    ranks = [rank for rank in one.job.ranks if rank.process.identity not in hang.gone]
    codes = {rank.process.exit_code for rank in ranks}
    # torchrun starts ranks again only where some have failed.
    restarts = one.attempt is not None
    failed = any(codes - {None}) or any(
        v.confidence > GUESS and (restarts or _by_more_than_absence(v)) for v in diagnosis.verdicts
    )
    if failed or 0 in codes:
        return failed
    return one.progress_since is None or not (one.freed or _freed(hang, ranks, RAN_S))


def _by_more_than_absence(verdict: Verdict) -> bool:
    """Whether more than that a rank is gone tells that the job failed."""
    return any(one.source in ("log", "kernel") for one in verdict.evidence)


def _freed(hang: Hang, ranks: Sequence[Rank], after: float) -> bool:
    """Whether those to blame for a hang have run so long after it; all ranks where nobody is."""
    named = {one.rank for verdict in hang.diagnosis.verdicts[:1] for one in verdict.culprits}
    blamed = [rank for rank in ranks if rank.rank in named] or ranks
    return all((rank.moved_at or 0.0) > hang.at + after for rank in blamed)
