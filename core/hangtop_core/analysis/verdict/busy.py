"""Ranks that are busy and never come back, or a thread of theirs: told together where alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.analysis.atwork import computes
from hangtop_core.analysis.sourcelines import may_backtrack
from hangtop_core.analysis.standing import THREADS_SHARE
from hangtop_core.analysis.verdict.base import Hit, Rule, Subject, alike
from hangtop_core.analysis.verdict.busyloops import never_left
from hangtop_core.analysis.verdict.evidence import common_facts, fact
from hangtop_core.analysis.verdict.needs import More
from hangtop_core.analysis.verdict.onethread import threads_of
from hangtop_core.analysis.verdict.sentences import is_are, sentence, several, since, who
from hangtop_core.analysis.verdict.steps import dump_step, profile_step

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.analysis.verdict.onethread import OneThread

BUSY_SHARE = 0.5
"""Cores that a thread takes at least which has one for itself."""


class _Work(NamedTuple):
    """What a busy subject does, without what differs between those that are alike."""

    text: str
    loop: str
    """The loop that it has not left, if any."""
    more: str
    owner: OneThread | None
    """The thread that has the GIL."""


def _work(case: Case, subject: Subject) -> _Work:
    activity, more = subject.activity, ""
    owner = _owner(case, subject)
    text = f"is busy at {activity.at}"
    if activity.kind == "gil" and owner is not None:
        text = f"waits for the GIL at {activity.at}; {owner.name} keeps it, at {owner.place}"
    elif owner is None and activity.top is not None:
        inside = case.c_function(subject) or "outside Python's own code"
        text = f"is busy {inside}, called at {activity.at}"
    at = owner.reading if owner is not None else None
    if at is not None and at.top is not None and at.own and may_backtrack(at.top.source):
        more = ", maybe in a regular expression that tries ever more ways to match,"
    return _Work(text, never_left(case, subject), more, owner)


def _busy(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    busy = [s for s in left if s.activity.kind in ("busy", "gil") and case.waiters]
    if case.progress.state == "unknown":  # `straggler` until that has lasted far too long
        busy = [s for s in busy if not computes(s.rank, s.activity)]
    yield from _told(case, busy)


def _kept(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    """Main threads that get nowhere as another thread runs, and never gives the GIL back.

    One that gets it by turns computes itself.
    """
    waiting = [s for s in left if s.activity.kind == "gil" and case.waiters]
    still = [s for s in waiting if (s.rank.main_cpu_share or 0.0) < THREADS_SHARE]
    owners = ((subject, _owner(case, subject)) for subject in still)
    yield from _told(case, [s for s, one in owners if one is not None and one.family is None])


def _owner(case: Case, subject: Subject) -> OneThread | None:
    return next((one for one in threads_of(case, subject) if one.stack.gil), None)


def _told(case: Case, busy: Sequence[Subject]) -> Iterator[Hit]:
    found = {id(subject): _work(case, subject) for subject in busy}
    for group in alike(busy, lambda s: (*found[id(s)][:3], s.activity.thread and s.number)):
        work = found[id(group[0])]
        text, owner = several(work.text, group), work.owner
        if work.loop:
            text = f"{is_are(group, 'is', 'are')} in the loop at {work.loop} and "
            text += f"{is_are(group, 'has not left it: it', 'have not left it: they')} "
            text += several(work.text, group)
        stays = is_are(group, "stays", "stay")
        yield Hit(
            subjects=group,
            summary=sentence(
                case,
                f"{who(group)} {text}{_cpu(group)}{work.more}",
                f"and {stays} there {since(case, group)}",
            ),
            evidence=(
                *common_facts(case, group),
                *(
                    [fact("stacks", group[0].number, f"{owner.name} holds the GIL")]
                    if owner
                    else []
                ),
            ),
            steps=(
                dump_step(group[0], "--each --locals"),
                profile_step(group[0]),
            ),
            needs=None if owner is None else (),
        )


def _cpu(group: Sequence[Subject]) -> str:
    """`, 98% of a core`, `, 90-100% of a core each`.

    Less than half of one says how much others want the machine, and not how busy it is.
    """
    shares = [s.rank.main_cpu_share or s.rank.cpu_share or 0.0 for s in group]
    if min(shares) < BUSY_SHARE:
        return ""
    ends = sorted({round(100 * min(shares)), round(100 * max(shares))})
    return f", {'-'.join(map(str, ends))}% of a core{' each' if len(group) > 1 else ''}"


KEPT = Rule(
    cause="gil-held",
    title="A thread never gives the GIL back",
    seen="py-spy says that another thread than the main one owns the GIL and runs, the main thread "
    "waits for it in all samples and takes less than a twentieth of a core, and others wait. A "
    "call into C keeps the GIL until it returns: a regular expression, a sort, an extension.",
    excluded="The main thread has it, or computes by turns: `busy-in-python`.",
    confidence=0.88,
    next_steps=("Look at the locals of that thread", "Profile it with its C frames"),
    find=_kept,
    needs=(More("native stacks", "which C function keeps the GIL"),),
)
BUSY = Rule(
    cause="busy-in-python",
    title="A rank is busy and never comes back",
    seen="The main thread runs, in the same functions in all samples, while others wait for it; "
    "or it and another thread of it take the GIL by turns. Or its functions change, and for ten "
    "times the hang time others wait while it is in a `while True:` that none of them is in, and "
    "nothing that it reads, writes or prints moves. For the hang time alone where it runs plain "
    "Python in a `while` that counts nothing, is always called from the same lines, and its memory "
    "does not change at all.",
    excluded="Its functions change otherwise or, in loops that come to their end as far as their "
    "heads tell, its lines: `straggler`. Another thread keeps the GIL: `gil-held`.",
    confidence=0.88,
    next_steps=("Look at its locals and profile it",),
    find=_busy,
    needs=(More("native stacks", "which C function keeps it, or that it only polls its GPU"),),
)
