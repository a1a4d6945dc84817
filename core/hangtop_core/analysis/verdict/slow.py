"""Ranks that are slow, not stuck: those that others wait for, and phases that take long."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.analysis.atwork import computes
from hangtop_core.analysis.progress import PATIENCE
from hangtop_core.analysis.serving import ENDS
from hangtop_core.analysis.shares import CHILD_SHARE, FOR_CHILDREN, lags, slow_one, stays
from hangtop_core.analysis.verdict.alone import by_design
from hangtop_core.analysis.verdict.base import LIKELY, STALLED, Hit, Rule, Subject, alike, besides
from hangtop_core.analysis.verdict.busyloops import loop_of_its_own
from hangtop_core.analysis.verdict.evidence import SHOWN, common_facts
from hangtop_core.analysis.verdict.naming import name_ranks, wait_text
from hangtop_core.analysis.verdict.needs import COMPUTES
from hangtop_core.analysis.verdict.positions import position_facts
from hangtop_core.analysis.verdict.programs import programs, told_children
from hangtop_core.analysis.verdict.saving import writes
from hangtop_core.analysis.verdict.sentences import does, is_are, sentence, several, who
from hangtop_core.analysis.verdict.steps import profile_step
from hangtop_core.diagnosis import STALLED_AFTER_S
from hangtop_core.text.clean import duration
from hangtop_core.text.commands import Advice
from hangtop_core.text.rank_sets import rank_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.steptimes import StepTimes
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.diagnosis import JobState
    from hangtop_core.stacks.kinds import Kind

_NOT_STUCK: frozenset[JobState] = frozenset({"progressing"})
_COMPUTES: frozenset[Kind] = frozenset({"busy", "inline-data", "importing"})
_KIND = attrgetter("activity.kind")
_AT_WORK: frozenset[Kind] = frozenset({"busy", "sleep", "inline-data", "importing", "data"})
AS_MEANT = Advice(
    "if it is to be so: raise the process group's timeout, or do it before the others wait"
)
SHORTEST_S = 0.1
"""Seconds below which a part of a step is not measured."""
PASSED = 2
"""Readings at least between which each of those that wait has left its wait."""


def _straggler(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    if case.step_times is not None:
        yield from _long_steps(case, case.step_times)
        return
    if all(s.activity.op == ENDS for s in case.waiters):
        return  # of a server of torch.distributed.rpc, which waits there all the time
    if case.waited_s >= STALLED_AFTER_S:
        yield from _slow(case, left, alone=False)
    else:
        yield from _held_up(case)


def _alone(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    if case.step_times is not None or case.waited_s < STALLED_AFTER_S:
        return
    if any(s.activity.op != ENDS for s in case.waiters):
        yield from _slow(case, left, alone=True)


def _slow(case: Case, left: Sequence[Subject], alone: bool) -> Iterator[Hit]:
    """Who is slow: ``alone`` at what it is to do while the others wait, or not.

    Of several ranks at work nobody is slow because others wait for a key in the store meanwhile.
    """
    if case.progress.state == "unknown":
        yield from _computing(case, left, alone)
        return
    slow = [s for s in left if s.activity.kind in _AT_WORK]
    for group in alike(slow, lambda s: (s.activity.kind, s.activity.site)):
        why = by_design(case, group)
        goes_on = not why and len(group) > 1 and set(map(_KIND, case.waiters)) == {"store"}
        if (bool(why) or goes_on) != alone:
            continue
        loop = loop_of_its_own(case, group[0])
        sure = not loop and all(_shown(case, s) for s in group)
        on_ = f"and {is_are(group, 'gets', 'get')} on"
        if loop:
            on_ = f"in the loop at {loop}; whether that comes to its end does not show"
        elif not sure:
            what = "line" if all(_same_functions(s) for s in group) else "function"
            on_ = f"and {is_are(group, 'goes', 'go')} from {what} to {what}"
            on_ = "in loops that come to their end" if all(map(_one_line, group)) else on_
            on_ += f"; whether {is_are(group, 'it gets', 'they get')} on does not show yet"
        yield Hit(
            subjects=group,
            summary=sentence(
                case,
                f"{who(group)} {is_are(group, 'is', 'are')} {'' if sure else 'most likely '}"
                f"{'' if goes_on else 'slow, '}not stuck{_at_what(group, why)}: "
                f"{is_are(group, 'it', 'they')} {does(group)} at "
                f"{group[0].activity.at}, {on_}; the others have waited at least "
                f"{duration(case.waited_s)}",
            ),
            confidence=None if sure else LIKELY,
            evidence=(*position_facts(case, group), *common_facts(case, group)),
            steps=(
                profile_step(group[0]),
                *((AS_MEANT,) if why else ()),
            ),
        )


def _at_what(group: Sequence[Subject], why: str) -> str:
    """`, at what it is to do alone, under `if rank == 0:` (train.py:70)`, or nothing."""
    return f", at what {is_are(group, 'it is', 'they are')} to do alone, {why}" if why else ""


def _same_functions(subject: Subject) -> bool:
    """Whether only the lines of a rank have changed lately."""
    sample = subject.rank.sample
    since = sample.same_functions_since if sample is not None else None
    return since is not None and since < subject.standing.since


def _one_line(subject: Subject) -> bool:
    """Whether not even its line has changed, and what it is in says that it gets on (`endless`)."""
    sample = subject.rank.sample
    since = sample.same_since if sample is not None else None
    return subject.activity.kind == "busy" and since is not None and since < subject.standing.since


def _shown(case: Case, subject: Subject) -> bool:
    """Whether anything but its functions shows that a rank gets on while the others wait."""
    if subject.activity.kind != "busy":
        return True
    moved = subject.rank.data_at
    return moved is not None and moved > case.at - case.waited_s


def _computing(case: Case, left: Sequence[Subject], alone: bool) -> Iterator[Hit]:
    """Ranks in native code without the GIL: until that returns, nothing shows how far it is."""
    slow = [s for s in left if s.activity.running and computes(s.rank, s.activity)]
    for group in alike(slow, lambda s: s.activity.site):
        why = by_design(case, group)
        if bool(why) != alone:
            continue
        yield Hit(
            subjects=group,
            summary=sentence(
                case,
                f"{who(group)} {is_are(group, 'computes', 'compute')} in native code, called at "
                f"{group[0].activity.at}, and {is_are(group, 'is', 'are')} most likely slow, not "
                f"stuck{_at_what(group, why)}: how far that is does not show; the others have "
                f"waited at least {duration(case.waited_s)}",
            ),
            evidence=common_facts(case, group),
            steps=(
                Advice(
                    f"wait: after {duration(PATIENCE * case.hang_after)} of that it is called hung"
                ),
                profile_step(group[0], "--native -d 10"),
                *((AS_MEANT,) if why else ()),
            ),
            confidence=LIKELY,
        )


def _long_steps(case: Case, times: StepTimes) -> Iterator[Hit]:
    """Who makes steps long, measured in those that have passed."""
    slow = [case.live[i] for i in times.slow]
    others = besides(case.live, slow)
    if writes(case, slow[0]):
        return  # it is told with its checkpoint
    now = " and ".join(dict.fromkeys(f"{s.activity.text} at {s.activity.at}" for s in slow[:2]))
    yield Hit(
        subjects=tuple(slow),
        summary=(
            f"{who(slow)} {is_are(slow, 'is', 'are')} slow, not stuck: "
            f"{long_steps(times, others)}. Now {is_are(slow, 'it', 'they')} {now}"
        ),
        evidence=common_facts(case, slow),
        steps=(
            profile_step(slow[0], "-d 20"),
            Advice("look whether it has more to do than the others: longer inputs, uneven layers"),
        ),
        slow=True,
    )


def long_steps(times: StepTimes, others: Sequence[Subject]) -> str:
    """`its last 4 steps took 6.0 s each, those of ranks 0,2-3 less than 0.1 s`."""
    least = "less than 0.1 s" if times.others_s < SHORTEST_S else f"{times.others_s:.1f} s"
    whose = "its" if len(times.slow) == 1 else "their"
    return (
        f"{whose} last {times.steps} steps took {times.slow_s:.1f} s each, "
        f"those of {name_ranks(others)} {least}"
    )


class HeldUp(NamedTuple):
    """One rank that works while all others wait for it, over several steps that they passed."""

    by: Subject
    told: str
    """What it has used, and what the others."""


def held_up(case: Case) -> HeldUp | None:
    """Who holds up all others, step by step.

    It may be met in the very line that the others wait in: what it does there shows by its CPU time
    only.
    """
    slow = slow_one([s.rank for s in case.live])
    if slow is None or not case.waiters or case.progress.state != "progressing":
        return None
    subject = next(s for s in case.live if s.rank is slow)
    others = [s for s in case.live if s.rank is not slow]
    known = [s.rank.lately for s in case.live if s.rank.lately is not None]
    if len(known) < len(case.live) or not all(s.waits for s in others):
        return None
    most, own = max(s.rank.lately.share for s in others if s.rank.lately), slow.lately
    span = min(one.span_s for one in known)
    passed = min(s.rank.lately.left for s in others if s.rank.lately)
    if own is None or not lags(own.share, most) or passed < PASSED:
        return None
    return HeldUp(
        subject,
        f"it has used {own.share:.0%} of a core in the last {duration(span)}, each of "
        f"{name_ranks(others)} {most:.0%} at most; these wait for it most of the time "
        f"({wait_text(others[0].activity)}), and steps pass",
    )


def _held_up(case: Case) -> Iterator[Hit]:
    found = held_up(case)
    if found is None or writes(case, found.by):
        return  # or it is told with its checkpoint
    subject = found.by
    yield Hit(
        subjects=(subject,),
        summary=f"{who([subject])} holds up the others, step by step: {found.told}",
        evidence=common_facts(case, [subject]),
        steps=(
            profile_step(subject, "-d 20"),
            Advice("look whether it has more to do than the others: longer inputs, uneven layers"),
        ),
        confidence=0.75,
        slow=True,
    )


def _long_phase(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    if case.waiters or not case.subjects or len(left) != len(case.subjects):
        return
    if case.progress.state == "progressing":
        yield from _by_children(case, left)
    stalled = case.progress.stalled_for_s or 0.0
    # A healthy job may pause between steps whenever it is sampled: sleeping tells nothing.
    if any(s.activity.kind not in _COMPUTES for s in left) or stalled < case.hang_after:
        return
    first = left[0].activity
    yield Hit(
        subjects=(),
        explained=tuple(left),
        summary=(
            f"no rank waits for another: {name_ranks(left)} {several(first.text, left)} at "
            f"{first.at}. A long phase, not a hang"
        ),
        evidence=common_facts(case, left),
        steps=(profile_step(left[0]),),
    )


def _by_children(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    """Every rank waits for children of its own, which are at work, and has done so for a while."""
    if not all(s.activity.kind in FOR_CHILDREN and stays(s.rank, case.at) for s in left):
        return
    places = [
        f"{name_ranks([s.number for s in group])} {several(group[0].activity.text, group)} at "
        f"{group[0].activity.at}"
        for group in alike(left, lambda s: (s.activity.text, s.activity.site))
    ]
    first = left[0]
    busy = [c for c in programs(first) if first.rank.child_cpu_share.get(c.pid, 0) >= CHILD_SHARE]
    told = told_children(case, first, busy)
    yield Hit(
        subjects=(),
        explained=tuple(left),
        summary=(
            f"no rank waits for another: {'; '.join(places[:SHOWN])}. Their children are at work"
            f"{f' (those of {rank_name(first.number)}: {told})' if told else ''}. "
            "A long phase, no hang"
        ),
        evidence=common_facts(case, left),
        steps=(profile_step(first, "-s -d 10"),),
    )


STRAGGLER = Rule(
    cause="straggler",
    title="A rank is slow, not stuck",
    seen="Others have waited for seconds, and this rank's functions change between samples or, in "
    "loops that come to their end, its lines: with less confidence where it is busy "
    "and nothing is read, written or printed. Or several steps have passed, in which the others "
    "waited half of the time or more, and this rank a quarter at most: then step times are told, "
    "and the state is `slow`. Or steps pass, and for twelve seconds and more it "
    "uses a core while each of the others waits most of the time. "
    "With less confidence: it computes in native code without the GIL, for less than ten times the "
    "hang time.",
    excluded="Otherwise its stack stays the same for the hang time. What one rank is to do while "
    "the others wait: `long-phase`.",
    confidence=0.8,
    next_steps=("Profile it",),
    find=_straggler,
    states=_NOT_STUCK | {"unknown"},
    needs=COMPUTES,
)
ALONE = Rule(
    cause="long-phase",
    title="A rank does alone what takes long, as it is to do",
    seen="As a `straggler`, and all others wait in a barrier, broadcast or scatter, or for the "
    "store, and the program tells that they are to: this rank is under a condition that only the "
    "main rank meets (`if rank == 0:`, `@rank_zero_only`), or in `with main_process_first():`; or "
    "the others wait in a function that is named so, or under `if rank != 0:`. Or several ranks "
    "are at work, and the others wait for a key in the store.",
    excluded="The others wait in a part of a step: `straggler`.",
    confidence=0.8,
    next_steps=("Profile it", "Raise the timeout"),
    find=_alone,
    states=_NOT_STUCK | {"unknown"},
    needs=COMPUTES,
)
LONG_PHASE = Rule(
    cause="long-phase",
    title="A long phase, not a hang",
    seen="No rank waits for another, all are at work; or each waits in one place for children of "
    "its own that are.",
    excluded="Somebody waits.",
    confidence=0.7,
    next_steps=("Wait; profile a rank",),
    find=_long_phase,
    states=STALLED | _NOT_STUCK,
    complete="nobody waits for anybody, and how much work is left no reading says",
)
