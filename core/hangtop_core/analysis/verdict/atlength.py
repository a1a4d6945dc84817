"""A rank that others wait for, and that gets on with what takes long: a download, a program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.verdict.base import Hit, Rule, Subject, alike
from hangtop_core.analysis.verdict.evidence import common_facts
from hangtop_core.analysis.verdict.pools import at_task
from hangtop_core.analysis.verdict.programs import awaited, programs, told_children
from hangtop_core.analysis.verdict.sentences import sentence, several, who
from hangtop_core.analysis.verdict.slow import AS_MEANT
from hangtop_core.analysis.verdict.steps import strace_step
from hangtop_core.diagnosis import STALLED_AFTER_S
from hangtop_core.text.clean import duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.stacks.kinds import Kind

_LONG: frozenset[Kind] = frozenset({"remote", "child", "io", "queue", "join", "lock"})


def _at_length(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    if not case.waiters or case.waited_s < STALLED_AFTER_S:
        return
    some = [s for s in left if s.activity.kind in _LONG and s.standing.gets_on]
    for group in alike(some, lambda s: (s.activity.site, s.activity.text)):
        first = group[0]
        one = len(group) == 1
        text = several(first.activity.text.rstrip(","), group)
        yield Hit(
            subjects=group,
            summary=sentence(
                case,
                f"{who(group)} {text} at {first.activity.at}{_for_what(case, first)}, and "
                f"{'gets' if one else 'get'} on: slow, not stuck; the others have waited at least "
                f"{duration(case.waited_s)}",
            ),
            evidence=common_facts(case, group),
            steps=(
                strace_step(first, first.pid),
                AS_MEANT,
            ),
        )


def _for_what(case: Case, subject: Subject) -> str:
    """Which programs a rank waits for, and what those do; a pool's task."""
    if subject.activity.kind != "child":
        return ""
    children = programs(subject)
    told = at_task(case, subject, children)
    told = told or told_children(case, subject, awaited(subject, children))
    return f" ({told})" if told else ""


AT_LENGTH = Rule(
    cause="long-phase",
    title="A rank waits for something that takes long, and gets on",
    seen="Others wait for it, and it waits for a network peer, a program that it started, a file, "
    "or a thread or queue of its own, and bytes come there or that is at work.",
    excluded="It was seen to do anything in the last seconds only because it looks whether it is "
    "ready. It reads or writes a file: see above; compiles: `compiling`.",
    confidence=0.7,
    next_steps=("Wait; raise the timeout",),
    find=_at_length,
    states=frozenset({"progressing"}),
    complete="it is told of jobs that get on: what shows that is read with every pass",
)
