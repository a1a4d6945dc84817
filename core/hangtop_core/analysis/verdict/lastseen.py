"""Where ranks that have left were when their stacks were last taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.standing import GONE
from hangtop_core.analysis.verdict.evidence import SHOWN, fact
from hangtop_core.model.frames import where
from hangtop_core.stacks.kinds import COMMUNICATION
from hangtop_core.text.clean import clean, duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.reading import Reading
    from hangtop_core.analysis.verdict.base import Subject
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.diagnosis import Evidence

LONG_S = 30.0
"""Seconds before its end within which a stack may tell where a rank was then."""


def _reading(case: Case, subject: Subject) -> Reading | None:
    sample = subject.rank.sample
    if subject.activity.kind not in GONE or sample is None or not sample.threads:
        return None
    left = case.ended_at(subject)
    if left is None or left - sample.at > LONG_S:
        return None
    return case.reader.reading(sample.threads[0].stack)


def last_waited(case: Case, subject: Subject) -> bool | None:
    """Whether a rank waited for others when it was last seen; None where that is not known."""
    if subject.activity.kind not in GONE:
        return subject.activity.kind in COMMUNICATION
    found = _reading(case, subject)
    return None if found is None else found.kind in COMMUNICATION


def last_place(case: Case, subject: Subject) -> str:
    """`sleep at train.py:9 (load)`, where a rank was when it was last seen, or empty."""
    found = _reading(case, subject)
    if found is None or found.top is None:
        return ""
    place = where(found.site or found.top)
    return clean(f"{found.op} at {place}" if found.op else place, 300)


def last_facts(case: Case, subjects: Sequence[Subject]) -> Iterator[Evidence]:
    """What the last stacks of ranks that have left say."""
    for subject in subjects[:SHOWN]:
        sample, place = subject.rank.sample, last_place(case, subject)
        if place and sample is not None:
            before = duration(max((case.ended_at(subject) or case.at) - sample.at, 0.0))
            text = f"when last seen, {before} before it left, it was in {place}"
            if sample.same_since is not None and sample.count > 1:
                text += f"; for {duration(sample.at - sample.same_since)} by then"
            yield fact("stacks", subject.number, text)
