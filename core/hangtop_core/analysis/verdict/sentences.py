"""How the sentences of verdicts are put together: who does what, for how long, and who waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.standing import JITTER_S, left_at
from hangtop_core.analysis.verdict.naming import name_ranks, name_subject
from hangtop_core.model.frames import ENDLESS
from hangtop_core.text.clean import of_several

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.analysis.verdict.base import Subject
    from hangtop_core.analysis.verdict.case import Case


def who(subjects: Sequence[Subject]) -> str:
    """`rank 2 (n1, pid 4711)`, or `ranks 2-5`; of a thread, that the main thread waits for it."""
    if len(subjects) > 1:
        return name_ranks(subjects)
    one, name = subjects[0].activity, name_subject(subjects[0])
    if not one.thread:
        return name
    if one.serving:
        return f"{name} answers a call by RPC in its thread '{one.thread}', which"
    return f"{name} {one.awaited} for its thread '{one.thread}', which"


def is_are(subjects: Sequence[Subject], one: str, many: str) -> str:
    """The verb form that fits the number of subjects."""
    return one if len(subjects) == 1 else many


def does(group: Sequence[Subject]) -> str:
    """What all of a group do: one long sleep is told from many short ones."""
    text = several(group[0].activity.text, group)
    return f"{text} again and again" if all(map(_naps, group)) else text


def until(group: Sequence[Subject]) -> str:
    """`, in `while not done.exists():`,`: what all of a group that sleeps look for."""
    site = group[0].activity.site
    loops = [text for _, text in (site.within if site else None) or () if text.startswith("while ")]
    if group[0].activity.kind != "sleep" or not loops or ENDLESS.match(loops[-1]):
        return ""
    return f", in `{loops[-1].partition('  # ')[0]}`,"


def _naps(subject: Subject) -> bool:
    sample, left = subject.rank.sample, left_at(subject.rank)
    if subject.activity.kind != "sleep" or sample is None or left is None:
        return False
    return left > min(subject.standing.since, sample.same_since or left) + JITTER_S


def several(text: str, subjects: Sequence[Subject]) -> str:
    """What one subject does as several do it: `has exited` becomes `have exited`."""
    return text if len(subjects) == 1 else of_several(text)


def since(case: Case, subjects: Sequence[Subject]) -> str:
    """`for 5:12`, how long all of them have got nowhere; empty when unknown."""
    return case.lasting(max(s.standing.since for s in subjects))


def sentence(case: Case, *parts: str, blamed: Sequence[Subject] = ()) -> str:
    """Join parts with blanks, and add who waits, but for those of them that are blamed."""
    said = " ".join(part for part in parts if part)
    waits = case.victims_clause(blamed)
    return f"{said}; {waits}" if waits else said
