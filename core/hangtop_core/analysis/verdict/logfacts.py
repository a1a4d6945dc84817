"""What logs add to the verdicts of other rules: errors, last lines, and whether these are old."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.verdict.evidence import SHOWN, fact
from hangtop_core.text.clean import clean, duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hangtop_core.analysis.verdict.base import Subject
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.diagnosis import Evidence

SHORTLY_S = 60.0
"""Seconds before the last progress within which a line may have to do with a hang."""

_OF_OURS = "Server listening to UNIX"
"""Part of what torch 2.11 prints (WorkerServer.cpp) where `hangtop run` starts a worker server."""


def log_facts(case: Case, subjects: Sequence[Subject]) -> Iterator[Evidence]:
    """What logs say of ranks that are to blame: their error, position, and last line."""
    judged = case.said.judged
    if judged is None:
        return
    for subject in subjects[:SHOWN]:
        rank = subject.number
        error = case.said.errors.get(rank)
        if error is not None:
            yield fact("log", rank, f"it printed {error.text}{error.from_where}")
        for one in judged.positions:
            if one.rank == rank:
                text = f"begun #{one.enqueued} of group {one.group}, completed #{one.completed}"
                yield fact("log", rank, f"its watchdog said: {text}")
        if error is None and rank in judged.last and _OF_OURS not in judged.last[rank][0]:
            line, at = judged.last[rank]
            ago = f", {duration(case.at - at)} ago" if at is not None and at <= case.at else ""
            yield fact("log", rank, f"its last line{ago}: {clean(line, 200)}")


def overtaken(case: Case, times: Iterable[float | None]) -> bool:
    """Whether the job was seen to get on well after all these moments, so far as they are known."""
    known = [at for at in times if at is not None]
    return bool(known) and case.last_move is not None and max(known) < case.last_move - SHORTLY_S


def error_text(case: Case, rank: int) -> str:
    """`KeyError: 'labels' at job.py:13 (step)`, what a rank printed that has left; or empty."""
    error = case.said.errors.get(rank)
    if error is None or error.code != "traceback":
        return ""
    return clean(error.text + error.from_where, 300)
