"""Causes that lines of logs tell where nothing else that is seen of a job explains its hang."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.standing import GONE
from hangtop_core.analysis.verdict.base import STALLED, Hit, Rule, Subject
from hangtop_core.analysis.verdict.evidence import common_facts, fact, sentence, who
from hangtop_core.analysis.verdict.logs import SHORTLY_S, live_steps, overtaken
from hangtop_core.logs.known import KNOWN
from hangtop_core.logs.steps import STEPS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case

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


def _printed(cause: str, case: Case) -> Iterator[Hit]:
    if not case.waiters or case.by_recorders is not None or overtaken(case, case.said.times(cause)):
        return
    for one in case.said.verdicts:
        if one.cause != cause:
            continue
        ranks = {culprit.rank for culprit in one.culprits}
        blamed = tuple(s for s in case.subjects if s.number in ranks)
        yield Hit(
            subjects=blamed,
            explained=case.waiters,
            summary=sentence(case, one.summary, blamed=blamed),
            evidence=(*one.evidence, *common_facts(case, blamed)),
            steps=live_steps(case, cause, blamed),
            confidence=one.confidence,
        )


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
        next_steps=STEPS[cause],
        find=lambda case, left: _printed(cause, case),
        states=STALLED | {"starting"} if cause in _AT_START else STALLED,
        last=True,
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
    where = f" at {first.record.where.text}" if first.record.where is not None else ""
    text = (first.record.means or first.record.text) + where
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
            "let a rank that has an error end, or make all ranks skip the same step",
            *live_steps(case, "missing-collective", blamed),
        ),
        confidence=0.65 if at is not None else 0.5,
    )


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
)
