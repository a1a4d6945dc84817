"""When and by what a job has ended, and which attempt of its launcher it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.verdict.naming import name_ranks
from hangtop_core.diagnosis import Attempt, Ended
from hangtop_core.launchline import number_in
from hangtop_core.text import clean, how_ended, shorten

if TYPE_CHECKING:
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.logs.judge import Fold
    from hangtop_core.model import Job

RESTARTS, MOST_RESTARTS = "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"
TEXT_CELLS = 160
"""Characters of a log line that says what ended a job."""
_ENDS = frozenset({"root", "timeout", "cascade", "exit"})
"""Parts of log records that end a process."""
_BY_ORDER = frozenset({"T16", "SLURM"})
"""Codes of log records by which a launcher was told to end the job."""


def job_end(case: Case) -> Ended:
    """Return when the last rank left, and what ended the job as far as that is known."""
    ends = [case.ended_at(one) or case.at for one in case.subjects]
    by = _by_logs(case) or _by_statuses(case)
    return Ended(round(max(ends, default=case.at), 3), clean(by, 300))


def _by_logs(case: Case) -> str:
    """`a timeout of rank 0: ...`, from the first error that ended a rank; empty without one."""
    judged = case.said.judged
    folds = (judged.first, *judged.others, *judged.follows) if judged is not None else ()
    ends = [one for one in folds if one is not None and one.record.part in _ENDS]
    ordered = [one for one in ends if one.record.code in _BY_ORDER]
    return next((_told(one) for one in (*ordered, *ends)), "")


def _told(fold: Fold) -> str:
    record = fold.record
    if record.code in _BY_ORDER and record.means:
        return record.means
    what = "a timeout" if record.part == "timeout" else "an error"
    whose = f" of {name_ranks(fold.ranks)}" if fold.ranks else ""
    return f"{what}{whose}: {shorten(record.text, TEXT_CELLS)}"


def _by_statuses(case: Case) -> str:
    """`SIGKILL of ranks 0-1`, or how the first rank left that did not end well."""
    gone = sorted(case.subjects, key=lambda one: case.ended_at(one) or case.at)
    failed = [one for one in gone if one.rank.process.exit_code]
    codes = {one.rank.process.exit_code for one in failed}
    if not failed:
        return ""
    if len(codes) == 1 and len(failed) == len(case.subjects):
        return f"{name_ranks(failed)}, {'each ' if len(failed) > 1 else ''}{_which(codes.pop())}"
    return f"{name_ranks(failed[:1])}, {_which(failed[0].rank.process.exit_code)}"


def _which(code: int | None) -> str:
    """`which was killed by SIGKILL`, `which exited with status 1`."""
    return f"which {how_ended(code or 0)}"


def attempt_of(job: Job) -> Attempt | None:
    """Return which attempt of torchrun's the ranks of a job are; None where there is but one."""
    env = job.ranks[-1].process.env if job.ranks else {}
    count, most = number_in(env, (RESTARTS,)), number_in(env, (MOST_RESTARTS,))
    if count is None or not (count or most):
        return None
    return Attempt(count + 1, None if most is None else max(most, count) + 1)
