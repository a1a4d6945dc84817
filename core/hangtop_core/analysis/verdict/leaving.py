"""Ranks that have left the training loop, and wait in what ends it: a `finally`, or a `with`."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.analysis.verdict.base import Hit, Rule, Subject
from hangtop_core.analysis.verdict.callers import (
    block_at,
    calls,
    line_of,
    loops,
    parting,
    stack_of,
)
from hangtop_core.analysis.verdict.endings import awaited, dead_thread
from hangtop_core.analysis.verdict.evidence import common_facts, fact
from hangtop_core.analysis.verdict.naming import name_ranks
from hangtop_core.analysis.verdict.needs import More
from hangtop_core.analysis.verdict.onethread import threads_of
from hangtop_core.analysis.verdict.sentences import is_are, sentence, who
from hangtop_core.analysis.verdict.steps import dump_step, trace_steps
from hangtop_core.analysis.verdict.threadwords import is_to_be_woken
from hangtop_core.model.frames import plain_name
from hangtop_core.text.commands import Advice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model.snapshot import Frame
    from hangtop_core.stacks.kinds import Kind

_WITH = ("with ", "with(", "async with ")
_EXITS = frozenset({"__exit__", "__aexit__"})
_WAITS: frozenset[Kind] = frozenset({"join", "queue", "lock"})
_SHOWN = 6
"""Threads whose place is evidence."""


class _Left(NamedTuple):
    """What a rank has left that others have not."""

    text: str
    others: Sequence[Subject]


def _leaving(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    for subject in left:
        threads = threads_of(case, subject) if subject.activity.kind in _WAITS else ()
        if not threads or not _ends(subject, threads[0].frames):
            continue
        found = _left(case, subject)
        if found is None or dead_thread(case, subject, threads):
            continue
        waits = f"{subject.activity.text} at {subject.activity.at} {case.since(subject)}".rstrip()
        ends = awaited(case, subject) if subject.activity.kind == "join" else ""
        yield Hit(
            subjects=(subject,),
            summary=sentence(
                case,
                f"{who([subject])} is leaving: it is in {found.text} {name_ranks(found.others)} "
                f"still {is_are(found.others, 'is', 'are')}. It {waits}",
                f"({ends})" if ends else "",
            ),
            evidence=(
                *(
                    fact("stacks", subject.number, f"{one.name} is at {one.place}")
                    for one in threads[1:_SHOWN]
                    if not one.idle
                ),
                *common_facts(case, [subject]),
            ),
            steps=(
                Advice(
                    "look for what led it there: an exception is printed only after its `finally`"
                ),
                dump_step(subject, "--each --locals"),
                *trace_steps(subject),
            ),
        )


def _ends(subject: Subject, stack: Sequence[Frame]) -> bool:
    """Whether it waits for others of its own to be done, as programs do at their end.

    Who wants a lock is told by who may hold that.
    """
    return subject.activity.kind != "lock" or is_to_be_woken(stack)


def _left(case: Case, subject: Subject) -> _Left | None:
    """What it has left, and who has not; None where it is in nothing that ends a loop."""
    mine = stack_of(case.snapshot.stacks, subject)
    for _, others in case.waiting_places:
        theirs = stack_of(case.snapshot.stacks, others[0])
        depth = parting(theirs, mine)
        if depth is None:
            continue
        here, there, inner = theirs[-1 - depth], mine[-1 - depth], mine[: len(mine) - 1 - depth]
        found = _finally(here, there) or _exit(here, there, inner[-1:])
        if found is None or loops(here) is None or loops(there) is None:
            continue
        begins, text = found
        # Within a loop it may be what ends one turn of that, and not the whole.
        turns = any(line < begins for line, _ in loops(there) or ())
        turns = turns or any(loops(one) != () for one in calls(mine[len(mine) - depth :]))
        goes_round = any(line >= begins for line, _ in loops(here) or ())
        goes_round = goes_round or any(map(loops, calls(theirs[: len(theirs) - 1 - depth])))
        if goes_round and not turns:
            return _Left(text, others)
    return None


def _finally(here: Frame, there: Frame) -> tuple[int, str] | None:
    """Where a `try` begins that others are in, and what the second one is in, its `finally`."""
    for begin, block in pairwise(there.beside or ()):
        if block[1].startswith("finally") and begin[0] <= here.line < block[0]:
            return begin[0], f"the `finally` of the `try` ({line_of(there, block)}) in whose loop"
    return None


def _exit(here: Frame, there: Frame, inner: Sequence[Frame]) -> tuple[int, str] | None:
    """Likewise of a `with` that others are in, and the second one ends."""
    if not inner or plain_name(inner[0].name) not in _EXITS:
        return None
    for block in here.beside or ():
        if block[1].startswith(_WITH) and block[0] == there.line:
            return block[0], f"what ends {block_at(there, block)}, in whose loop"
    return None


LEAVING = Rule(
    cause="teardown",
    title="A rank has left the training loop, and waits for a thread or queue of its own",
    seen="The main thread waits for a thread of its own to end, for a queue, or to be woken, in "
    "the `finally` of a `try`, or in what ends a `with`; others wait in communication within that, "
    "in a loop. No loop is around it.",
    excluded="It wants a lock, or a thread of it has died: `lock-wait`, `queue-wait`.",
    confidence=0.85,
    next_steps=(
        "Look for the exception that led it there",
        "Tell the thread to end also after an error",
    ),
    find=_leaving,
    needs=(More("logs", "after which error it leaves"),),
)
