"""Ranks that wait for a queue or a future, and who of their own could end that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.idle import FUTURES, accepts
from hangtop_core.analysis.standing import wakes_up
from hangtop_core.analysis.verdict.base import Hit, Rule, Subject, alike
from hangtop_core.analysis.verdict.doing import asked_first, does, name_child
from hangtop_core.analysis.verdict.endings import dead_child, dead_thread, lost_children
from hangtop_core.analysis.verdict.evidence import common_facts
from hangtop_core.analysis.verdict.needs import OF_CHILD, OPEN, More
from hangtop_core.analysis.verdict.onethread import OneThread, threads_of
from hangtop_core.analysis.verdict.sentences import sentence, several, since, who
from hangtop_core.analysis.verdict.steps import dump_step, trace_steps
from hangtop_core.analysis.verdict.threadwords import (
    BY_CALL,
    blocks_loop,
    is_by_call,
    or_call,
    said_of,
    theirs,
    thread_facts,
)
from hangtop_core.text.clean import clean, how_ended, plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.analysis.verdict.endings import Dead


def _queue(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    found: dict[int, tuple[str, Dead | None]] = {}
    waiting = [s for s in left if s.activity.kind == "queue"]
    for subject in waiting:
        threads = threads_of(case, subject)
        dead = dead_thread(case, subject, threads) or dead_child(case, subject)
        told = _who_could(case, subject, threads)
        told += or_call(subject, threads[0]) if threads and not dead else ""
        # What has died comes before threads that only are where they should be.
        found[id(subject)] = f"{dead.text}; {told}" if dead else told, dead
    for group in alike(waiting, lambda s: said_of(s, *found[id(s)])):
        first = group[0]
        told, dead = found[id(first)]
        told = theirs(told) if len(group) > 1 else told
        text = f"waits in {first.activity.op or 'a queue'} at {first.activity.at}"
        yield Hit(
            subjects=group,
            summary=sentence(
                case,
                f"{who(group)} {several(text, group)}",
                f"{since(case, group)}: {told}".lstrip(": "),
            ),
            evidence=(
                *(dead.facts if dead else ()),
                *thread_facts(first, threads_of(case, first)),
                *common_facts(case, group),
            ),
            steps=(
                dump_step(first, "--each --locals"),
                *trace_steps(first),
            ),
            confidence=dead.confidence if dead else BY_CALL if is_by_call(told) else None,
            needs=_asked(case, first),
        )


def _asked(case: Case, subject: Subject) -> tuple[More, ...]:
    """Of an event loop its connections; else of the child that may have to fill the queue."""
    if subject.activity.family == "poll":
        return OPEN["poll"]
    children = [c for c in subject.rank.children if c.role == "subprocess" and not c.ended]
    return asked_first(case, subject, children)


def _who_could(case: Case, subject: Subject, threads: Sequence[OneThread]) -> str:
    """Who could end the wait for a queue or a future: threads at work, children, or nobody."""
    rest = threads[1:]
    if threads and blocks_loop(threads[0].frames):
        return (
            "its own event loop cannot run meanwhile, which is below on the same stack: what a "
            "coroutine of that loop is to give never comes"
        )
    others = [one for one in rest if one.reading.kind not in ("queue", "idle-worker")]
    others = [one for one in others if not one.idle]
    others.sort(key=lambda one: accepts(one.frames))  # who waits for others to connect comes last
    if others:
        return "; ".join(f"{one.name} is at {one.place}" for one in others[:3])
    exhausted = _exhausted(subject, rest)
    if exhausted:
        return exhausted
    children = [c for c in subject.rank.children if c.role == "subprocess"]
    dead = [c for c in lost_children(subject) if c.role == "subprocess"]
    puts, joins = subject.activity.op == "put", subject.activity.op == "join"
    if dead:
        ended = "ended" if dead[0].exit_code is None else how_ended(dead[0].exit_code)
        verb = "emptied" if puts or joins else "filled"
        return (
            f"most likely its {name_child(case, subject, dead[0])} {verb} it, which "
            f"{ended} and is a zombie"
        )
    live = [c for c in children if not c.ended]
    if live:
        doing = does(case, subject, live[0])
        text = f"its {name_child(case, subject, live[0])}{f', which {doing},' if doing else ''}"
        return f"{text} may have to {'empty' if puts or joins else 'fill'} it"
    if any("/asyncio/" in frame.file for one in threads[:1] for frame in one.frames[:12]):
        if wakes_up(subject.rank, subject.standing):
            return "its event loop wakes up now and then, and nothing shows that a task gets on"
        return "nothing in its event loop can run: all its tasks wait"
    waits = f" ({plural(len(rest), 'other thread')} only waiting for work)" if rest else ""
    if puts:
        return f"it is full, and no thread takes from it{waits}: what did has most likely ended"
    if joins:
        return f"what is in it is not done (task_done), and no thread is at work on it{waits}"
    if rest:
        return f"no thread is at work that could fill it{waits}"
    return "no other Python thread is alive that could fill it"


def _exhausted(subject: Subject, rest: Sequence[OneThread]) -> str:
    """That all threads of a pool wait for futures themselves: nobody is left to run these."""
    if subject.activity.op not in FUTURES:
        return ""
    waiting: dict[str, int] = {}
    for one in rest:
        if one.pool is not None and one.reading.op in FUTURES:
            waiting[one.pool] = waiting.get(one.pool, 0) + 1
    free = {(one.stack.name or "").rpartition("_")[0] for one in rest if one.idle}
    pools = [name for name in waiting if name not in free]
    if not pools:
        return ""
    count, name = waiting[pools[0]], clean(pools[0], 60)
    all_of_it = {1: "the only thread", 2: "both threads"}.get(count, f"all {count} threads")
    verb = "wait" if count > 1 else "waits"
    return (
        f"{all_of_it} of its pool '{name}' {verb} for futures, too: nobody is left to run "
        "tasks that wait in this pool"
    )


QUEUE_WAIT = Rule(
    cause="queue-wait",
    title="A rank waits for a queue that nobody fills",
    seen="The main thread is in Queue.get, Future.result, or an event loop that waits.",
    excluded="The queue is a DataLoader's; a thread of the rank waits in a collective. Anything "
    "comes on a connection of the event loop, for ten minutes.",
    confidence=0.85,
    next_steps=("Find the producer: its thread or process may have died",),
    find=_queue,
    needs=(*OPEN["poll"], *OF_CHILD),
)
