"""How verdicts from logs are worded: whom a thing happened to, what happened, and what shows it."""

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
"""What became of an error that did not end its rank, by who printed it."""
BOTH_ENDS = {"N11": 0.8}
"""Lines that either end of a connection may print, whoever is to blame, with the most that is
believed of them: settings that differ make ranks print so, too."""


def who(one: Fold) -> str:
    """Whom a thing happened to, for a sentence."""
    nodes = ", ".join(one.nodes[:3])
    if one.ranks:
        return f"{names(one.ranks)} ({nodes})" if nodes else names(one.ranks)
    local = {record.origin.local for record in one.members} - {None}
    if len(local) == 1 and one.record.code not in LAUNCHERS:
        return f"local rank {local.pop()}{f' of {nodes}' if nodes else ''}"
    some = "processes" if len(one.nodes) > 1 else "a process"
    return f"{some} ({nodes})" if nodes else some


def told(one: Fold) -> str:
    """What happened, in half a sentence: what the line means, or what the exception says."""
    record = one.record
    text = record.means or record.text
    if record.code == "traceback":
        bare = not record.means or (record.part == "root" and code_of(one) not in BOTH_ENDS)
        if bare:
            text = f"{'raised' if record.part == 'root' else 'printed'} {record.text}"
        if record.fields.get("first"):
            text += f" (after {record.fields['first']})"
        if record.fields.get("group"):
            text += f" (in {record.fields['group']})"
        # What a known line means may be about another rank, which was somewhere else.
        text += "; seen" if record.where is not None and not bare else ""
        text += record.from_where
    if record.part == "survived":
        text += f", {_WENT_ON.get(record.how, 'and went on')}"
    return clean(text, 400)


def code_of(one: Fold) -> str:
    """Which known line it is, also where an exception holds that."""
    return one.record.fields.get("known", one.record.code)


def evidence(one: Fold, label: str = "") -> Evidence:
    """What was printed, behind a label."""
    rank = one.ranks[0] if len(one.ranks) == 1 else None
    text = one.record.text + one.record.from_where
    if len(one.ranks) > 1:
        text = f"{names(one.ranks)}: {text}"
    elif one.count > 1 and one.record.code not in LAUNCHERS:  # which tell of one end twice
        text += f" ({one.count} times)"
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
    """A verdict; its steps are those of its cause where none are given."""
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
