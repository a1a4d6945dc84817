"""When and by what a job has ended, and which attempt of its launcher it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.verdict.naming import name_ranks
from hangtop_core.diagnosis import Attempt, Ended
from hangtop_core.logs.judging.statuses import by_statuses
from hangtop_core.logs.meaning.known import LAUNCHERS
from hangtop_core.model.snapshot import Left
from hangtop_core.text.clean import clean, how_ended, shorten
from hangtop_core.text.launchers import number_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.analysis.verdict.base import Subject
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.logs.judging.judged import Fold
    from hangtop_core.model.snapshot import Job, Process

RESTARTS, MOST_RESTARTS = "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"
TEXT_CELLS = 160
"""Characters of a log line that says what ended a job."""
_ENDS = frozenset({"root", "timeout", "cascade", "exit"})
"""Parts of log records that end a process."""


def job_end(case: Case) -> Ended:
    """Return when the last rank left, and what ended the job, as far as that is known.

    A zombie is only known to have left after it last ran.
    """
    ends = [case.ended_at(one) or case.at for one in case.subjects]
    by = case.job.slurm_end or _by_logs(case) or _by_launchers(case.job.launchers)
    by = by or by_statuses(_left(case, one) for one in case.subjects)
    return Ended(round(max(ends, default=case.at), 3), clean(by, 300))


def _by_logs(case: Case) -> str:
    """`rank 0 timed out: ...`, by the first error that ended a rank; empty without one."""
    judged = case.said.judged
    folds = (judged.first, *judged.others, *judged.follows) if judged is not None else ()
    ends = [one for one in folds if one is not None and one.record.part in _ENDS]
    ends.sort(key=_hearsay)
    return _told(ends[0]) if ends else ""


def _hearsay(fold: Fold) -> int:
    """Who told a launcher to end comes first, then what ranks print, then what others say."""
    record = fold.record
    if record.code in LAUNCHERS:
        return 0 if record.part == "root" else 2
    return 2 if record.part in ("exit", "cascade") else 1


def _told(fold: Fold) -> str:
    record, text = fold.record, shorten(fold.record.text, TEXT_CELLS)
    if record.code in LAUNCHERS or not fold.ranks:
        return record.means if record.part == "root" and record.means else text
    if record.part == "timeout":
        return f"{name_ranks(fold.ranks)} timed out: {record.means or text}"
    return f"{name_ranks(fold.ranks)} failed: {text}"


def _by_launchers(launchers: Sequence[Process]) -> str:
    """`torchrun was killed by SIGKILL`: a launcher that a rank ends exits with a status."""
    killed = [one for one in launchers if one.ended and (one.exit_code or 0) < 0]
    first = min(killed, key=lambda one: one.gone_at or 0.0, default=None)
    return f"{first.launcher or first.comm} {how_ended(first.exit_code or 0)}" if first else ""


def _left(case: Case, one: Subject) -> Left:
    process, at = one.rank.process, case.ended_at(one) or case.at
    return Left(process.node, process.pid, process.start, one.number, at, process.exit_code)


def attempt_of(job: Job) -> Attempt | None:
    """Return which attempt of torchrun's the ranks of a job are; None where there is but one."""
    env = job.ranks[-1].process.env if job.ranks else {}
    count, most = number_in(env, (RESTARTS,)), number_in(env, (MOST_RESTARTS,))
    if count is None or not (count or most):
        return None
    return Attempt(count + 1, None if most is None else max(most, count) + 1)
