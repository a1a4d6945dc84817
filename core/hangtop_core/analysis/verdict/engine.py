"""The engine: asks all rules about a job and puts their answers in order."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from hangtop_core.analysis.flight.countdown import countdown
from hangtop_core.analysis.since import hung_since
from hangtop_core.analysis.standing import HALTED
from hangtop_core.analysis.verdict.awaited import without_consequences
from hangtop_core.analysis.verdict.blind import blind_spots
from hangtop_core.analysis.verdict.case import Case
from hangtop_core.analysis.verdict.evidence import culprit, waiting_facts
from hangtop_core.analysis.verdict.excluded import exclusions
from hangtop_core.analysis.verdict.jobend import attempt_of, job_end
from hangtop_core.analysis.verdict.logfacts import log_facts
from hangtop_core.analysis.verdict.lost import lost
from hangtop_core.analysis.verdict.needs import needs
from hangtop_core.analysis.verdict.notfinite import STEP, first_of, numbers_facts
from hangtop_core.analysis.verdict.others import OWN, beside
from hangtop_core.analysis.verdict.printed import ANOTHER_WAY, survived_facts
from hangtop_core.analysis.verdict.ras import ras_facts
from hangtop_core.analysis.verdict.rules import RULES
from hangtop_core.analysis.verdict.servers import at_work
from hangtop_core.analysis.verdict.steps import spelt
from hangtop_core.analysis.verdict.timeline import timeline
from hangtop_core.diagnosis import (
    FAILED,
    HANG_AFTER_S,
    MAX_SUMMARY,
    REPORT_IT,
    SCHEMA,
    STALLED_AFTER_S,
    BlindSpot,
    Diagnosis,
    JobState,
    JobSummary,
    Verdict,
)
from hangtop_core.scheduling.ui_priority import SCREENS
from hangtop_core.stacks.kinds import COMMUNICATION
from hangtop_core.text.clean import clean, utc
from hangtop_core.version import __version__

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from hangtop_core.analysis.verdict.base import Hit, Rule, Subject
    from hangtop_core.diagnosis import Ended, Evidence, Exclusion, Moment, Need, RequestWait
    from hangtop_core.model.snapshot import Job, Snapshot

log = logging.getLogger(__name__)

FOLLOWED = 0.82
"""Most that is believed of a thread for which a main thread waits, as stacks let one think."""
UNDECIDED = 0.85
"""Factor on confidences while a job is stalled but not yet called hung."""
SUSPECTS = 1 / 3
"""Part of the hang time in which a job that waits has no suspects yet: steps may take so long."""
PRESUMED = 0.6
"""Factor where, for want of stacks, it is only presumed who waits."""
TOGETHER = 25
"""Rules that are asked without giving way, of thousands of ranks in some milliseconds."""


def diagnose(
    snapshot: Snapshot,
    job: Job | None,
    hang_after: float = HANG_AFTER_S,
    rules: Sequence[Rule] = RULES,
) -> Diagnosis:
    """Say how a job gets on, who is to blame and why, and what could not be seen.

    Args:
        snapshot: everything that was observed.
        job: the job in question; None when none was found.
        hang_after: seconds without progress after which waiting is called a hang.
        rules: asked in this order.
    """
    if job is None:
        return _diagnosis(snapshot, None, "unknown")
    case = Case(snapshot, job, hang_after)
    state = case.progress.state
    failed: dict[str, BlindSpot] = {}
    asked = list(_ask(case, rules, failed))
    hits = without_consequences(case, asked)
    stalled = case.progress.stalled_for_s
    if state in ("unknown", "starting") and stalled is not None and stalled >= STALLED_AFTER_S:
        decisive = any(_is_decisive(rule, hit) for rule, hit in hits)
        state = "hung" if decisive and (case.waiters or not job.ranks) else state
    if state == "unknown" and (stalled or 0.0) < max(STALLED_AFTER_S, hang_after * SUSPECTS):
        hits = [one for one in hits if "progressing" in one[0].states]
        stalled = None
    verdicts, ordered = _in_order(case, state, hits)
    causes = {one.cause for one in verdicts}
    moving = state in ("progressing", "idle", "exited")
    halted = _halted_in_waits(case, hits)
    since = hung_since(snapshot, job, case.progress, halted) if state == "hung" else None
    SCREENS.give_way()
    stuck = state == "hung" or (not moving and (stalled or 0.0) >= STALLED_AFTER_S)
    return _diagnosis(
        snapshot,
        job,
        _told(case, state, hits),
        hung_for_s=_since(snapshot, since),
        stalled_for_s=None if moving or stalled is None or stalled < STALLED_AFTER_S else stalled,
        watchdog_in_s=None if moving or (stalled or 0.0) < STALLED_AFTER_S else _watchdog(case),
        verdicts=verdicts,
        ruled_out=tuple(exclusions(case, causes | failed.keys())) if stuck else (),
        timeline=timeline(case, ordered, since) if stuck or verdicts else (),
        needs=needs(case, asked) if stuck or state == "exited" else (),
        failed=tuple(failed.values()),
        ended=job_end(case) if state == "exited" else None,
        request_waits=case.serving.waits if state == "idle" and case.serving is not None else (),
    )


def _told(case: Case, state: JobState, hits: Sequence[tuple[Rule, Hit]]) -> JobState:
    """Return the state that people are told: one that makes progress may only begin, or be slow."""
    if state != "progressing":
        return state
    if _meets(case):
        return "starting"
    return "slow" if case.step_times is not None or any(hit.slow for _, hit in hits) else state


def _halted_in_waits(case: Case, hits: Sequence[tuple[Rule, Hit]]) -> frozenset[int]:
    """Ranks to blame that were halted while they waited for others."""
    samples = {
        subject.number: subject.rank.sample
        for _, hit in hits
        for subject in hit.subjects
        if subject.activity.kind in HALTED
    }
    return frozenset(
        number
        for number, sample in samples.items()
        if sample is not None
        and sample.threads
        and case.reader.reading(sample.threads[0].stack).kind in COMMUNICATION
    )


def _meets(case: Case) -> bool:
    """Whether ranks wait for others to join, and none is in a collective: training has not begun.

    Those that they wait for may be at work.
    """
    return {s.activity.kind for s in case.waiters} == {"init"}


def _in_order(
    case: Case, state: JobState, hits: Sequence[tuple[Rule, Hit]]
) -> tuple[tuple[Verdict, ...], tuple[Hit, ...]]:
    """Return verdicts, the surest first, and what each was made of."""
    blamed = {id(s) for _, hit in hits for s in hit.subjects}
    held_up = [s for _, hit in hits for s in hit.held_up]
    victims = _victims(case, blamed, held_up)
    waiting = waiting_facts(case) if hits else ()
    made = [(_verdict(case, state, rule, hit, victims, waiting), hit) for rule, hit in hits]
    made.sort(key=lambda one: -one[0].confidence)
    made = _causes_first(made)
    verdicts = [made[0][0]] if made else []
    for verdict, hit in made[1:]:
        how = beside(case, made[0], (verdict, hit))
        verdicts.append(msgspec.structs.replace(verdict, weaker=how.weaker, apart=how.apart))
    return tuple(verdicts), tuple(hit for _, hit in made)


def _causes_first(made: list[tuple[Verdict, Hit]]) -> list[tuple[Verdict, Hit]]:
    """Put what held ranks up before what came over some of them when they already waited for it."""
    late = min((hit.late for _, hit in made if hit.late is not None), default=None)
    if late is None:
        return made

    def caused(one: tuple[Verdict, Hit]) -> bool:
        verdict, hit = one
        began = min((s.standing.since for s in hit.subjects), default=late)
        return hit.late is None and verdict.confidence >= OWN and began < late

    return sorted(made, key=lambda one: not caused(one))


def _ask(
    case: Case, rules: Sequence[Rule], failed: dict[str, BlindSpot]
) -> Iterable[tuple[Rule, Hit]]:
    """Ask rules in order; who is explained by one is not shown to the next."""
    state, stalled = case.progress.state, case.progress.stalled_for_s
    waits = stalled is not None and stalled >= STALLED_AFTER_S
    left = {id(s): s for s in at_work(case)}
    found = False
    missed: set[tuple[int | None, str]] = set()
    for rule in SCREENS.between(rules, TOGETHER):
        if rule.last and found:
            continue
        slow = "progressing" in rule.states
        if state not in rule.states or (state in ("unknown", "starting") and not (waits or slow)):
            continue
        for hit in _found(case, rule, tuple(left.values()), failed):
            blames = bool(hit.subjects or hit.absent)
            if found and hit.explained and not blames:
                # What is unknown is explained once anybody is to blame.
                continue
            absent = {(one.rank, one.node) for one in hit.absent}
            if absent and not hit.subjects and absent <= missed:
                # An earlier rule knows more of why they are not there.
                continue
            found = True
            missed |= absent
            for one in (*hit.subjects, *hit.explained):
                left.pop(id(one), None)
            yield rule, hit


def _found(
    case: Case, rule: Rule, left: Sequence[Subject], failed: dict[str, BlindSpot]
) -> Iterable[Hit]:
    """What a rule finds; where it fails, that is told, and others are asked all the same."""
    try:
        yield from rule.find(case, left)
    except Exception as error:
        failed[rule.cause] = _failed(rule.cause, error)


def _failed(sought: str, error: Exception) -> BlindSpot:
    log.exception("looking for %s failed", sought)
    why = f"hangtop failed to look for {sought}: {type(error).__name__}: {error}"
    return BlindSpot(FAILED, (), (), clean(why, 300), REPORT_IT)


def _blind_spots(snapshot: Snapshot, job: Job | None) -> tuple[BlindSpot, ...]:
    """What was not seen; where that fails, it is told, and the verdicts stand all the same."""
    try:
        return blind_spots(snapshot, job)
    except Exception as error:
        return (_failed("blind spots", error),)


def _is_decisive(rule: Rule, hit: Hit) -> bool:
    return rule.decisive if hit.decisive is None else hit.decisive


def _verdict(
    case: Case,
    state: JobState,
    rule: Rule,
    hit: Hit,
    victims: tuple[int, ...],
    waiting: Iterable[Evidence],
) -> Verdict:
    confidence = rule.confidence if hit.confidence is None else hit.confidence
    if any(s.activity.thread for s in hit.subjects):
        confidence = min(confidence, FOLLOWED)
    if state == "unknown":
        confidence *= UNDECIDED
    if case.blind:
        confidence *= PRESUMED
    culprits = (*(culprit(case, s) for s in hit.subjects), *hit.absent)
    blamed_ranks = {one.rank for one in culprits if one.rank is not None}
    numbers = numbers_facts(case, blamed_ranks)
    steps = [spelt(step, case.nodes) for step in (*((STEP,) if numbers else ()), *hit.steps)]
    return Verdict(
        cause=rule.cause,
        confidence=round(confidence, 2),
        culprits=culprits,
        victims=victims,
        summary=clean(hit.summary, MAX_SUMMARY),
        evidence=(
            *hit.evidence,
            *ras_facts(case, blamed_ranks),
            *numbers,
            *_logged(case, rule, hit),
            *waiting,
        ),
        next_steps=tuple(step.text for step in steps),
        commands=tuple(step.command for step in steps),
    )


def _victims(case: Case, blamed: Container[int], held_up: Sequence[Subject]) -> tuple[int, ...]:
    """Who waits; who has waited in vain and left; and, of those that ended, who lost another.

    Who is blamed by any of the verdicts (``blamed``, by id) is a victim of none.
    """
    waited = (*case.waiters, *held_up, *case.gave_up)
    if case.progress.state == "exited":
        waited = (*waited, *(s for s in case.subjects if lost(case, s) is not None))
    return tuple(sorted({s.number for s in waited if id(s) not in blamed}))


def _logged(case: Case, rule: Rule, hit: Hit) -> Iterable[Evidence]:
    """What logs say of whom a hit blames, unless it stands on logs itself."""
    if any(one.source == "log" for one in hit.evidence):
        return
    yield from log_facts(case, hit.subjects)
    if rule.cause in ANOTHER_WAY:
        yield from survived_facts(case, hit.subjects)


def _diagnosis(
    snapshot: Snapshot,
    job: Job | None,
    state: JobState,
    hung_for_s: float | None = None,
    stalled_for_s: float | None = None,
    watchdog_in_s: float | None = None,
    verdicts: tuple[Verdict, ...] = (),
    ruled_out: tuple[Exclusion, ...] = (),
    timeline: tuple[Moment, ...] = (),
    needs: tuple[Need, ...] = (),
    failed: tuple[BlindSpot, ...] = (),
    ended: Ended | None = None,
    request_waits: tuple[RequestWait, ...] = (),
) -> Diagnosis:
    return Diagnosis(
        schema=SCHEMA,
        hangtop=__version__,
        observed_at=utc(snapshot.at),
        observed_for_s=round(max(snapshot.at - snapshot.observed_since, 0.0), 1),
        state=state,
        hung_for_s=_tenths(hung_for_s),
        watchdog_in_s=_tenths(watchdog_in_s),
        job=_summary(job) if job is not None else None,
        verdicts=verdicts,
        blind_spots=(*failed, *_blind_spots(snapshot, job)),
        stalled_for_s=_tenths(stalled_for_s),
        ruled_out=ruled_out,
        timeline=timeline,
        needs=needs,
        numbers=first_of(snapshot, job) if job is not None else None,
        ended=ended,
        attempt=attempt_of(job) if job is not None else None,
        request_waits=request_waits,
    )


def _watchdog(case: Case) -> float | None:
    """Seconds until the first operation times out, 0 when that is over; None where not known."""
    first = countdown(case.picture.waits) if case.picture is not None else None
    return None if first is None else max(first.at - case.snapshot.at, 0.0)


def _since(snapshot: Snapshot, since: float | None) -> float | None:
    return None if since is None else max(snapshot.at - since, 0.0)


def _tenths(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


def _summary(job: Job) -> JobSummary:
    live = Counter(rank.rank for rank in job.ranks if not rank.ended)
    return JobSummary(
        world_size=job.world_size,
        ranks_seen=tuple(sorted({rank.rank for rank in job.ranks})),
        nodes=job.nodes,
        launcher=clean(job.launcher, 60) if job.launcher is not None else None,
        id=clean(job.id, 200) if job.id is not None else None,
        unnumbered=len(job.unnumbered),
        twice=tuple(sorted(rank for rank, count in live.items() if count > 1)),
    )
