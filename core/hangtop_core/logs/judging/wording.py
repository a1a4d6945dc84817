"""Wording of verdicts from logs: the subject, the event, and the evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.diagnosis import MAX_SUMMARY, Culprit, Evidence, Verdict
from hangtop_core.logs.meaning.known import LAUNCHERS
from hangtop_core.logs.meaning.steps import STEPS
from hangtop_core.text.clean import clean
from hangtop_core.text.commands import Step, shown
from hangtop_core.text.rank_sets import names

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hangtop_core.logs.judging.judged import Fold

_WENT_ON = {"thread": "which ended a thread", "ignored": "which Python ignored"}
"""What became of an error that did not end its rank, by its printer."""
BOTH_ENDS = {"N11": 0.8}
"""Lines that either end of a connection may print, with the highest confidence in a culprit: ranks
with different settings print these, too."""


def subject(fold: Fold) -> str:
    """Return the subject of an event for a sentence."""
    nodes = ", ".join(fold.nodes[:3])
    if fold.ranks:
        return f"{names(fold.ranks)} ({nodes})" if nodes else names(fold.ranks)
    local = {record.origin.local for record in fold.members} - {None}
    if len(local) == 1 and fold.record.code not in LAUNCHERS:
        return f"local rank {local.pop()}{f' of {nodes}' if nodes else ''}"
    processes = "processes" if len(fold.nodes) > 1 else "a process"
    return f"{processes} ({nodes})" if nodes else processes


def event(fold: Fold) -> str:
    """Return the event as half a sentence: the meaning of the line, or the exception's text."""
    record = fold.record
    text = record.means or record.text
    if record.code == "traceback":
        bare = not record.means or (record.part == "root" and code_of(fold) not in BOTH_ENDS)
        if bare:
            text = f"{'raised' if record.part == 'root' else 'printed'} {record.text}"
        if record.fields.get("first"):
            text += f" (after {record.fields['first']})"
        if record.fields.get("group"):
            text += f" (in {record.fields['group']})"
        # The meaning of a known line may concern another rank, at another place.
        text += "; seen" if record.where is not None and not bare else ""
        text += record.from_where
    if record.part == "survived":
        text += f", {_WENT_ON.get(record.how, 'and went on')}"
    return clean(text, 400)


def code_of(fold: Fold) -> str:
    """Return the code of the known line, also of one in an exception."""
    return fold.record.fields.get("known", fold.record.code)


def evidence(fold: Fold, label: str = "") -> Evidence:
    """Return the printed line behind a label."""
    rank = fold.ranks[0] if len(fold.ranks) == 1 else None
    text = fold.record.text + fold.record.from_where
    if len(fold.ranks) > 1:
        text = f"{names(fold.ranks)}: {text}"
    elif fold.count > 1 and fold.record.code not in LAUNCHERS:  # these report one end twice
        text += f" ({fold.count} times)"
    return Evidence("log", rank, clean(label + text, 600))


def verdict(
    cause: str,
    confidence: float,
    ranks: Sequence[int],
    victims: Iterable[int],
    summary: str,
    facts: Iterable[Evidence],
    node: str = "",
    steps: tuple[Step, ...] = (),
) -> Verdict:
    """Return a verdict; its next steps are those of its cause unless given."""
    spelt = [shown(step) for step in steps or STEPS.get(cause, ())]
    return Verdict(
        cause=cause,
        confidence=round(confidence, 2),
        culprits=tuple(Culprit(rank, node, None) for rank in ranks[:64]),
        victims=tuple(sorted(set(victims) - set(ranks))),
        summary=clean(summary, MAX_SUMMARY),
        evidence=tuple(facts),
        next_steps=tuple(step.text for step in spelt),
        commands=tuple(step.command for step in spelt),
    )
