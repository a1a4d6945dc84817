"""The state of jobs and their culprits, in the words and colours of all views."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop.terminal.spans import Line, line
from hangtop.views.common import span
from hangtop_core.analysis.flight.picture import FlightDiagnosis
from hangtop_core.diagnosis import FIRST_STACKS_S, STALLED_AFTER_S
from hangtop_core.report.diagnosis import confidence_word

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hangtop_core.diagnosis import Diagnosis, Verdict
    from hangtop_core.model.snapshot import Job, Rank

_STATES = {
    "slow": ("● SLOW", "warn"),
    "progressing": ("● PROGRESSING", "good"),
    "idle": ("○ IDLE", "good"),
    "starting": ("○ STARTING", "info"),
    "exited": ("○ EXITED", "bold"),
}
"""Text and role of the states that need no more words."""


def worst_first(jobs: Iterable[Job], diagnoses: Mapping[str, Diagnosis]) -> list[Job]:
    """Sort jobs: hung, stalled, other running jobs, jobs that hung until they ended, the rest."""

    def urgency(job: Job) -> int:
        diagnosis = diagnoses.get(job.key)
        if diagnosis is None:
            return 2
        if diagnosis.hung_until_end:
            return 3
        if diagnosis.state in ("hung", "exited"):
            return 0 if diagnosis.state == "hung" else 4
        return 1 if (diagnosis.stalled_for_s or 0.0) >= STALLED_AFTER_S else 2

    return sorted(jobs, key=urgency)


_CONFIDENCE = {"high": "good", "medium": "warn", "low": "dim"}


def confidence(verdict: Verdict) -> Line:
    """Return the confidence of a verdict, as a word and a number."""
    word = confidence_word(verdict.confidence)
    return line((f"{word} confidence {verdict.confidence:.0%}", _CONFIDENCE[word]))


SUSPECTED = 0.5
"""Confidence below which no rank is marked as a culprit: a wrong name is worse than none."""


def culprits(diagnosis: Diagnosis | None) -> dict[tuple[str, int | None], str]:
    """Return causes by culprit, keyed by node and pid, and by rank; the best verdict wins.

    Culprits of verdicts below `SUSPECTED` are left out.
    """
    causes: dict[tuple[str, int | None], str] = {}
    for verdict in diagnosis.verdicts if diagnosis else ():
        if verdict.confidence < SUSPECTED:
            continue
        for culprit in verdict.culprits:
            causes.setdefault((culprit.node, culprit.pid), verdict.cause)
            if culprit.pid is None:
                causes.setdefault(("rank", culprit.rank), verdict.cause)
    return causes


def cause_of(blamed: Mapping[tuple[str, int | None], str], rank: Rank) -> str | None:
    """Return the cause for which a rank is a culprit, from the result of `culprits`."""
    return blamed.get((rank.node, rank.process.pid)) or blamed.get(("rank", rank.rank))


def unread(diagnosis: Diagnosis, job: Job | None) -> int:
    """Return the number of ranks without a first stack, while no verdict is possible yet."""
    if job is None or diagnosis.observed_for_s >= FIRST_STACKS_S or diagnosis.verdicts:
        return 0
    return sum(rank.sample is None and rank.process.gone_at is None for rank in job.ranks)


def state_line(diagnosis: Diagnosis | None, job: Job | None, since: float = 0.0) -> Line:
    """Return `● HUNG 3:12`, the most important text of the screen.

    `since` is the seconds that have passed since the diagnosis.
    """
    if job is None or diagnosis is None:
        return line(("○ NO JOB" if job is None else "○ WATCHING", "bold"))
    if diagnosis.hung_until_end and diagnosis.ended is not None:
        end = "ENDED" if diagnosis.state == "exited" else "LOST"
        return line((f"● {end} after hanging {span(diagnosis.ended.after_hanging_s)}", "bad"))
    if diagnosis.state == "hung":
        lasting = "" if diagnosis.hung_for_s is None else f" {span(diagnosis.hung_for_s + since)}"
        return line((f"● HUNG{lasting}", "hung"))
    stalled_s = _stalled_for(diagnosis, job)
    if stalled_s is not None:
        return line((f"● STALLED {span(stalled_s)}", "warn"))
    if diagnosis.state in _STATES:
        return line(_STATES[diagnosis.state])
    if isinstance(diagnosis, FlightDiagnosis):
        return line(("○ NOTHING UNDER WAY", "good"))
    return line(("○ WATCHING", "info"))


def _stalled_for(diagnosis: Diagnosis, job: Job) -> float | None:
    """Return for how many seconds a job that is called stalled has made no progress."""
    seconds = diagnosis.stalled_for_s
    if diagnosis.state not in ("progressing", "unknown"):
        return None
    if seconds is None or seconds < STALLED_AFTER_S:
        return None
    return None if diagnosis.state == "unknown" and unread(diagnosis, job) else seconds
