"""Ranks that are busy and never come back: told together where they are alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.analysis.atwork import computes
from hangtop_core.analysis.sourcelines import may_backtrack
from hangtop_core.analysis.verdict.base import Hit, Rule, Subject
from hangtop_core.analysis.verdict.evidence import (
    alike,
    common_facts,
    fact,
    is_are,
    never_left,
    sentence,
    several,
    since,
    who,
)
from hangtop_core.analysis.verdict.needs import More
from hangtop_core.analysis.verdict.onethread import threads_of
from hangtop_core.analysis.verdict.steps import on

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
    owner = next((one for one in threads_of(case, subject) if one.stack.gil), None)
    text = f"is busy at {activity.at}"
    if activity.kind == "gil" and owner is not None:
        text = f"waits for the GIL at {activity.at}; {owner.name} keeps it, at {owner.place}"
    elif owner is None and activity.top is not None:
        inside = case.c_function(subject) or "outside Python's own code"
        text = f"is busy {inside}, called at {activity.at}"
    top = activity.top
    own = owner is not None and owner.stack.tid == subject.pid and top == activity.site
    if own and top is not None and may_backtrack(top.source):
        more = ", maybe in a regular expression that tries ever more ways to match"
    return _Work(text, never_left(case, subject), more, owner)


def _busy(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    found: dict[int, _Work] = {}
    for subject in left:
        activity = subject.activity
        if activity.kind not in ("busy", "gil") or not case.waiters:
            continue
        if case.progress.state == "unknown" and computes(subject.rank, activity):
            continue  # a `straggler` until that has lasted far too long
        found[id(subject)] = _work(case, subject)
    busy = [s for s in left if id(s) in found]
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
                on(group[0], f"hangtop dump --pid {group[0].pid} --each --locals"),
                on(group[0], f"py-spy record -d 10 -o profile.svg --pid {group[0].pid}"),
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


BUSY = Rule(
    cause="busy-in-python",
    title="A rank is busy and never comes back",
    seen="The main thread runs, in the same functions in all samples, while others wait for it; "
    "or another thread of it keeps the GIL busy. Or its functions change, and for ten times the "
    "hang time others wait while it is in a `while True:` that none of them is in, and nothing "
    "that it reads, writes or prints moves.",
    excluded="Its functions change otherwise or, in loops that go from one thing to the next, its "
    "lines: `straggler`. The GIL's owner sleeps: `gil-held`.",
    confidence=0.88,
    next_steps=("Look at its locals and profile it",),
    find=_busy,
    needs=(More("native stacks", "which C function keeps it, or that it only polls its GPU"),),
)
