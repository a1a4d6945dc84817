"""Causes that lines of logs tell where nothing else that is seen of a job explains its hang."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.standing import GONE
from hangtop_core.analysis.verdict.base import STALLED, Hit, Rule, Subject, alike
from hangtop_core.analysis.verdict.evidence import common_facts, culprit, fact
from hangtop_core.analysis.verdict.lastseen import last_facts, last_place, last_waited
from hangtop_core.analysis.verdict.linesneed import COMPLETE, NEEDS
from hangtop_core.analysis.verdict.logfacts import SHORTLY_S, overtaken
from hangtop_core.analysis.verdict.logs import live_steps
from hangtop_core.analysis.verdict.lost import lost
from hangtop_core.analysis.verdict.naming import name_ranks
from hangtop_core.analysis.verdict.needs import ISSUED, MORE_OR_LESS
from hangtop_core.analysis.verdict.sentences import is_are, sentence, several, who
from hangtop_core.analysis.verdict.steps import trace_steps
from hangtop_core.diagnosis import Verdict
from hangtop_core.logs.meaning.known import KNOWN
from hangtop_core.logs.meaning.steps import STEPS
from hangtop_core.logs.parsing.own_words import named_alone
from hangtop_core.text.commands import Advice, texts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.diagnosis import Evidence, JobState

CAUSES: tuple[str, ...] = (
    "missing-collective",
    "all-joined-transport",
    "mismatched-collective",
    "gil-held",
    "io-wait",
    "disk-full",
    "dataloader-worker-dead",
    "pin-memory-stuck",
    "launch-misconfigured",
    "port-blocked",
    "nccl-init-incomplete",
)
_AT_START = frozenset({"launch-misconfigured", "port-blocked", "nccl-init-incomplete"})


_STATES: frozenset[JobState] = STALLED | {"exited"}
ANOTHER_WAY = frozenset({"missing-collective", "mismatched-collective", "uneven-inputs"})
"""Causes in which a rank went another way than the others, as one does that catches an error."""
_CAUGHT = frozenset({"root", "survived", "error"})
"""Parts of errors that a rank may have caught."""
_MAX_CAUGHT = 2
AGREED = 0.92
"""Confidence where logs and the last stacks of ranks tell the same."""


def _printed(cause: str, case: Case) -> Iterator[Hit]:
    waited = (*case.waiters, *case.gave_up)
    if not waited or case.by_recorders is not None or overtaken(case, case.said.times(cause)):
        return
    said = [one for one in case.said.verdicts if one.cause == cause]
    for one in said or (_stayed_away(case) if cause == "missing-collective" else ()):
        ranks = {culprit.rank for culprit in one.culprits}
        blamed = tuple(s for s in case.subjects if s.number in ranks)
        yield Hit(
            subjects=blamed,
            explained=waited,
            summary=sentence(case, one.summary + _were(case, blamed), blamed=blamed),
            evidence=(
                *one.evidence,
                *last_facts(case, blamed),
                *common_facts(case, [s for s in blamed if s.activity.kind not in GONE]),
                *last_facts(case, case.gave_up),
            ),
            steps=live_steps(case, texts(STEPS.get(cause, ())), blamed),
            confidence=_agreed(case, one.confidence, blamed),
            needs=None if any(s.activity.kind not in GONE for s in blamed or waited) else (),
        )


def _stayed_away(case: Case) -> Iterator[Verdict]:
    """Ranks that are seen here and of which logs say nothing, where others gave up waiting."""
    numbers = {s.number for s in case.gave_up}
    silent = [s for s in case.subjects if s.number not in numbers and lost(case, s) is None]
    errors = [e for s in case.gave_up if (e := case.said.errors.get(s.number)) is not None]
    if not errors or not silent or len(silent) * 2 > len(case.subjects):
        return
    text = f"{name_ranks(silent)} did not come where {name_ranks(case.gave_up)} waited: "
    facts = [fact("log", e.rank, f"it printed {e.text}") for e in errors[:3]]
    first = case.said.judged.first if case.said.judged is not None else None
    if first is not None and first.record.part != "timeout":
        facts.append(
            fact("log", None, f"a process, which one is not told, logged {first.record.text}")
        )
    culprits = tuple(culprit(case, s) for s in silent)
    said = text + (errors[0].means or errors[0].text) + errors[0].from_where
    yield Verdict("missing-collective", 0.7, culprits, (), said, tuple(facts), ())


def _were(case: Case, blamed: Sequence[Subject]) -> str:
    """What those to blame do, or did when they were last seen, where all did the same."""
    if not blamed or not case.gave_up:
        return ""
    alive = all(s.activity.kind not in GONE for s in blamed)
    seen = {s.activity.text + s.activity.at if alive else last_place(case, s) for s in blamed}
    if len(seen) != 1 or not all(seen):
        return ""
    if alive:
        first = blamed[0].activity
        text = several(f"{first.text} at {first.at}", blamed)
        return f"; {is_are(blamed, 'it', 'they')} {text}"
    return f"; when last seen {is_are(blamed, 'it was', 'they were')} in {seen.pop()}"


def _agreed(case: Case, confidence: float, blamed: Sequence[Subject]) -> float:
    """Surer where stacks say the same: who waited was last seen in a call that waits, who is to
    blame was not."""
    seen = [last_waited(case, s) for s in case.gave_up]
    others = [last_waited(case, s) for s in blamed]
    agree = bool(seen) and bool(others) and all(seen) and not any(others) and None not in others
    return max(confidence, AGREED) if agree else confidence


def _rule(cause: str) -> Rule:
    needles = dict.fromkeys(f"`{row.needle}`" for row in KNOWN if row.cause == cause)
    if cause in ("missing-collective", "all-joined-transport"):
        seen = (
            "In the logs: what the watchdogs of NCCL say when they give up, as `last enqueued "
            "work: 17, last completed work: 16`, or when they are told that another has; or "
        )
        seen += ", ".join(needles) if needles else "a timeout of all ranks"
        seen += (
            ". Ranks that have begun less than most of their group are blamed, or those that "
            "have not waited in vain."
            if cause == "missing-collective"
            else ", and all ranks have begun as much."
        )
    elif needles:
        seen = f"In a log: {', '.join(needles)}."
    else:
        seen = "In the logs: `Init START` of a communicator by some ranks, and `Init COMPLETE` not."
    return Rule(
        cause=cause,
        title="What logs say, where nothing else explains the hang",
        seen=seen,
        excluded="Anything above has been found. The job was seen to get on over "
        f"{SHORTLY_S:.0f} seconds after that line. Flight recorders of all ranks could be read.",
        confidence=0.75,
        next_steps=texts(STEPS[cause]),
        find=lambda case, left: _printed(cause, case),
        states=_STATES | {"starting"} if cause in _AT_START else _STATES,
        last=True,
        needs=NEEDS.get(cause, ()),
        complete=COMPLETE.get(cause, ""),
    )


def _went_on(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    """A rank that has printed an error, lives, and waits with all others."""
    judged = case.said.judged
    folds = (judged.first, *judged.survived) if judged is not None else ()
    errors = (one for one in folds if one and one.record.part in ("root", "survived"))
    first = next(errors, None)
    if first is None or not case.waiters:
        return
    at = first.record.at if first.record.exact else None
    if overtaken(case, [at]):
        return
    blamed = tuple(
        s for s in case.subjects if s.number in first.ranks and s.activity.kind not in GONE
    )
    if not blamed or len(blamed) * 2 > len(case.subjects):
        return
    text = (first.record.means or first.record.text) + first.record.from_where
    yield Hit(
        subjects=blamed,
        summary=sentence(
            case,
            f"{who(blamed)} printed an error and went on: {text}. A rank that catches an error "
            "leaves out the collectives between it and where it goes on",
            blamed=blamed,
        ),
        evidence=(
            *(fact("log", s.number, f"it printed {first.record.text}") for s in blamed[:4]),
            *common_facts(case, blamed),
        ),
        steps=(
            Advice("let a rank that has an error end, or make all ranks skip the same step"),
            *live_steps(case, texts(STEPS["missing-collective"]), blamed),
        ),
        confidence=0.65 if at is not None else 0.5,
    )


def survived_facts(case: Case, subjects: Sequence[Subject]) -> Iterator[Evidence]:
    """Errors that others than these, or nobody knows who, have printed though all ranks live.

    Who has caught one leaves out the collectives between it and where it goes on.
    """
    judged = case.said.judged
    if judged is None or case.suspects:
        return
    told = {subject.number for subject in subjects}
    folds = [
        one
        for one in (judged.first, *judged.survived)
        if one is not None
        and one.record.part in _CAUGHT
        and not told.intersection(one.ranks)
        and 2 * len(one.ranks) <= len(case.subjects)
    ]
    for one in folds[-_MAX_CAUGHT:]:
        last = one.record.again or one.record
        if overtaken(case, [last.at if last.exact else None]):
            continue
        named = named_alone(one.record.text) if not one.ranks else None
        who_ = name_ranks(one.ranks) if one.ranks else "a rank, which one is not told,"
        who_ = f"rank {named}, as it says," if named is not None else who_
        before = {r.fields.get("named") for r in one.members} if not one.ranks else set()
        if named is None and len(before) == 1 and None not in before:
            who_ = f"rank {before.pop()}, as the line before says,"
        often = f" {one.count} times" if one.count > 1 else ""
        text = f"{one.record.text}{one.record.from_where}{often}"
        yield fact("log", None, f"{who_} printed {text}, and went on")


RULES: tuple[Rule, ...] = tuple(_rule(cause) for cause in CAUSES)
WENT_ON = Rule(
    cause="missing-collective",
    title="A rank has printed an error, and went on",
    seen="The first error in the logs, as `CUDA out of memory` or a traceback, is of a rank that "
    "lives and waits as the others do.",
    excluded="Anything above has been found. The job was seen to get on over "
    f"{SHORTLY_S:.0f} seconds after it. Half of the ranks or more have printed the same.",
    confidence=0.65,
    next_steps=("Let a rank that has an error end, or make all ranks skip the same step",),
    find=_went_on,
    last=True,
    needs=MORE_OR_LESS,
)


def _left_behind(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    """Who is still at something, where all others have waited for it in vain and left."""
    numbers = case.said.gave_up
    alive = [s for s in left if s.activity.kind not in GONE]
    if not numbers or not alive or len(alive) < len(case.live) or any(s.waits for s in alive):
        return
    errors = [e for n in sorted(numbers) if (e := case.said.errors.get(n)) is not None]
    earlier = any(e.exact and (e.at or 0.0) < case.began for e in errors)
    if not errors or earlier or numbers & {s.number for s in alive} or len(alive) > len(numbers):
        return
    others = name_ranks(sorted(numbers))
    for group in alike(alive, lambda s: (s.activity.text, s.activity.at)):
        activity = group[0].activity
        yield Hit(
            subjects=group,
            summary=(
                f"{who(group)} did not come where {others} waited{errors[0].from_where}. "
                f"{'These have' if len(numbers) > 1 else 'That one has'} given up and left; now "
                f"{is_are(group, 'it', 'they')} {several(activity.text, group)} at "
                f"{activity.at}"
            ),
            evidence=(
                *(fact("log", e.rank, f"it printed {e.text}{e.from_where}") for e in errors[:3]),
                *common_facts(case, group),
            ),
            steps=(
                Advice("end the job: it cannot go on without those that have left"),
                *trace_steps(group[0]),
            ),
        )


LEFT_BEHIND = Rule(
    cause="missing-collective",
    title="All others have given up waiting for a rank and left, and it is still at work",
    seen="The first error in the logs is that ranks waited until a timeout. They are gone; who is "
    "there has printed nothing like it, waits for nobody, and is in none of the calls above.",
    excluded="Anything above explains where the rank is. The timeouts are of an earlier run.",
    confidence=0.8,
    next_steps=("End the job", "Look at the stack of that rank"),
    find=_left_behind,
    states=STALLED | {"progressing"},
    needs=ISSUED,
)


def _in_vain(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    """All that is told is that ranks waited in vain and left."""
    for one in case.said.verdicts[:1] if case.gave_up else ():
        if one.cause == "unknown":
            yield Hit(
                subjects=(),
                explained=(*case.waiters, *case.subjects),
                summary=one.summary,
                evidence=(*one.evidence, *last_facts(case, case.gave_up)),
                steps=live_steps(case, texts(STEPS["missing-collective"]), ()),
            )


IN_VAIN = Rule(
    cause="unknown",
    title="Ranks waited in vain and left",
    seen="The first error in the logs is that ranks waited until a timeout, and nothing tells for "
    "whom: all have printed it.",
    excluded="Anything above has been found.",
    confidence=0.3,
    next_steps=texts(STEPS["missing-collective"]),
    find=_in_vain,
    states=_STATES,
    last=True,
    complete="all have left, and what they printed was read",
)
