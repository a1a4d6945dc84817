"""Causes among the threads of one rank: locks and queues."""

from __future__ import annotations

import re
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.analysis.frames import plain_name
from hangtop_core.analysis.idle import FUTURES, accepts
from hangtop_core.analysis.sourcelines import by_source
from hangtop_core.analysis.standing import wakes_up
from hangtop_core.analysis.verdict import locks
from hangtop_core.analysis.verdict.base import Hit, Rule, Subject
from hangtop_core.analysis.verdict.callers import handles_signals, in_handler
from hangtop_core.analysis.verdict.doing import asked_first, does, name_child
from hangtop_core.analysis.verdict.endings import dead_child, dead_thread, lost_children
from hangtop_core.analysis.verdict.evidence import (
    alike,
    common_facts,
    fact,
    sentence,
    several,
    since,
    who,
)
from hangtop_core.analysis.verdict.needs import OF_CHILD, OPEN, More
from hangtop_core.analysis.verdict.onethread import OneThread, threads_of
from hangtop_core.analysis.verdict.steps import dump_step, trace_steps
from hangtop_core.analysis.verdict.threadwords import (
    blocks_loop,
    import_deadlock,
    is_to_be_woken,
    wait_of,
    why_others,
)
from hangtop_core.text import clean, how_ended, plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.analysis.verdict.endings import Dead
    from hangtop_core.diagnosis import Evidence

_OWN = re.compile(r"\bits\b")
_OWN_WORD = re.compile(r"3\.(?:1[4-9]|[2-9]\d|\d{3,})(?!\d)")
"""Releases of CPython in which each thread sleeps on a word of its own: from 3.14 on."""
_CALL, _BY_CALL = "; or a call by another rank is to do that, and has not come", 0.6


def _lock(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    found: dict[int, _Wait] = {}
    for subject in left:
        activity = subject.activity
        if activity.kind not in ("lock", "join", "queue", "waiting") or activity.loading:
            continue
        if activity.kind == "waiting" and activity.family != "futex":
            continue
        threads = threads_of(case, subject)
        importing = import_deadlock(threads[0], threads[1:]) if threads else None
        if importing is not None:
            yield _importing(case, subject, threads, importing)
        stuck = [one for one in threads if one.wants_lock]
        if activity.kind == "queue" and importing is None and (knot := _crossed(stuck)):
            text = f"waits in {activity.op or 'a queue'} at {activity.at}"
            found[id(subject)] = _Wait(text, f": {knot.text}", knot, None)
        if importing is not None or activity.kind == "queue":
            continue
        if activity.kind == "waiting" and len(stuck) < 2 and not _has_candidates(threads):
            continue
        tangle = _tangle(subject, stuck)
        if activity.kind == "join" and not stuck:
            yield _joining(case, subject, threads)
            continue
        told = _owners(threads, why_others(threads[0]))
        dead = dead_thread(case, subject, threads) if not tangle else None
        told += f"{':' if told.startswith('no ') else ';'} {dead.text}" if dead else ""
        told += _or_call(subject, threads[0]) if threads and not dead else ""
        told = f": {tangle.text}" if tangle else f"; {told}"
        found[id(subject)] = _Wait(wait_of(activity, threads[0]), told, tangle, dead)
    waiting = [s for s in left if id(s) in found]
    for group in alike(waiting, lambda s: _said_of(s, found[id(s)].told, found[id(s)].dead)):
        yield _locked(case, group, found[id(group[0])])


def _locked(case: Case, group: Sequence[Subject], wait: _Wait) -> Hit:
    first, dead, tangle = group[0], wait.dead, wait.tangle
    told = _OWN.sub("their", wait.told) if len(group) > 1 else wait.told
    main = f"{who(group)} {several(wait.text, group)} {since(case, group)}".rstrip()
    by_call = wait.told.endswith(_CALL)
    return Hit(
        subjects=tuple(group),
        summary=sentence(case, f"{main}{told}"),
        evidence=(
            *(dead.facts if dead else ()),
            *_thread_facts(first, threads_of(case, first)),
            *common_facts(case, group),
        ),
        steps=(
            dump_step(first, "--each --locals"),
            *trace_steps(first),
        ),
        confidence=sure.confidence if (sure := tangle or dead) else _BY_CALL if by_call else None,
        decisive=tangle is not None,
    )


class _Wait(NamedTuple):
    """What is said of a rank that waits for a lock."""

    text: str
    told: str
    tangle: _Tangle | None
    dead: Dead | None


class _Tangle(NamedTuple):
    """How threads that wait for locks are in one another's way."""

    text: str
    confidence: float


def _tangle(subject: Subject, stuck: Sequence[OneThread]) -> _Tangle | None:
    """Say it by the locks that their lines take; else, of several locks, that it is likely."""
    if (both := _crossed(stuck)) is not None:
        return both
    for one in stuck:
        before = locks.again(one.frames)
        if before is not None:
            lock, depth = before
            text = f"{one.name} most likely waits for itself: it takes `{lock.name}` at "
            text += f"{one.place}, and has it since {lock.at}, in "
            text += f"{plain_name(one.frames[depth].name)} (only an RLock can be taken twice)"
            if any(map(handles_signals, one.frames[:depth])):
                # Those that came while it had the lock, and none before that.
                text += f"; it is {in_handler(one.frames[: depth + 1])}"
            return _Tangle(text, 0.9)
    takers = [one for one in stuck if one.takes_lock]
    if not _several_locks(subject, takers):
        return None
    places = " and ".join(f"{one.name} at {one.place}" for one in takers[:3])
    return _Tangle(f"most likely its threads wait for each other's locks, {places}", 0.91)


def _crossed(stuck: Sequence[OneThread]) -> _Tangle | None:
    """The same of two of which each has what the other wants."""
    for one, other in combinations(stuck, 2):
        both = locks.crossed(one.frames, other.frames)
        if both is not None:
            text = f"most likely each of two threads holds what the other wants: {one.name} wants "
            text += f"`{both[0].name}` at {one.place}, {other.name} `{both[1].name}` at "
            return _Tangle(f"{text}{other.place}", 0.95)
    return None


def _several_locks(subject: Subject, takers: Sequence[OneThread]) -> bool:
    """Whether threads want different locks, so that each may well have what another one wants.

    Equal addresses are one lock, which neither of them has got. Where a thread sleeps on a word
    of its own, only the lines tell.
    """
    own_word = _OWN_WORD.match(subject.rank.process.versions.get("python", "")) is not None
    wanted = {one.source if own_word else one.facts and one.facts.futex for one in takers}
    return len(wanted) >= 2 and None not in wanted


def _joining(case: Case, subject: Subject, threads: Sequence[OneThread]) -> Hit:
    text = f"{who([subject])} waits for a thread of its own to end, at {subject.activity.at}"
    text = f"{text} {case.since(subject)}".rstrip()
    return Hit(
        subjects=(subject,),
        summary=sentence(case, f"{text}; {_owners(threads, 'that may be')}"),
        evidence=(
            *_thread_facts(subject, threads),
            *common_facts(case, [subject]),
        ),
        steps=trace_steps(subject),
        confidence=0.75,
    )


def _importing(case: Case, subject: Subject, threads: Sequence[OneThread], other: OneThread) -> Hit:
    """The main thread waits while it imports, and a thread for a module that is being imported."""
    waits = {
        "join": "waits for a thread of its own to end,",
        "queue": f"waits in {subject.activity.op or 'a queue'}",
    }.get(subject.activity.kind) or "waits"
    text = f"{who([subject])} {waits} at {subject.activity.at} {case.since(subject)}".rstrip()
    told = f"{other.name} waits for a module that another thread is still importing, at "
    told += f"{other.place}, and the main thread waits while it imports: most likely that "
    told += "one (an import deadlock)"
    return Hit(
        subjects=(subject,),
        summary=sentence(case, f"{text}; {told}"),
        evidence=(*_thread_facts(subject, threads), *common_facts(case, [subject])),
        steps=(
            f"take what waits out of the import at {subject.activity.at}: start threads, and wait "
            "for them, in a function that is called later",
            *trace_steps(subject),
        ),
        confidence=0.85,
    )


def _or_call(subject: Subject, waits: OneThread) -> str:
    """That a call which waits to be woken may wait for another call, of a rank that has left."""
    woken = subject.activity.kind == "queue" or is_to_be_woken(waits.frames)
    return _CALL if subject.activity.serving and woken else ""


def _has_candidates(threads: Sequence[OneThread]) -> bool:
    """Whether the line of the main thread, or another thread, speaks for a lock."""
    top = threads[0].reading.top if threads else None
    told = by_source(top.source if top is not None else None)
    return (told is not None and told[0] == "lock") or len(threads) > 1


def _owners(threads: Sequence[OneThread], why: str = "who may hold it") -> str:
    others = [one for one in threads[1:] if one.reading.site is not None and not one.idle]
    wait = [one for one in others if one.wants_lock]
    if wait and len(wait) == len(others):
        named = ", ".join(f"{one.name} at {one.place}" for one in wait[:3])
        return f"so {'does' if len(wait) == 1 else 'do'} {named}, and no other thread works"
    others = [one for one in others if not one.wants_lock]
    if not others:
        return "no other Python thread is at work that could release it"
    named = "; ".join(f"{one.name} is at {one.place}" for one in others[:3])
    return f"{why}: {named}"


def _thread_facts(subject: Subject, threads: Sequence[OneThread]) -> list[Evidence]:
    return [
        fact(
            "stacks",
            subject.number,
            f"{one.name} (tid {one.stack.tid}) {one.does} at {one.place}{one.futex}",
        )
        for one in threads[:6]
    ]


def _queue(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    found: dict[int, tuple[str, Dead | None]] = {}
    waiting = [s for s in left if s.activity.kind == "queue"]
    for subject in waiting:
        threads = threads_of(case, subject)
        dead = dead_thread(case, subject, threads) or dead_child(case, subject)
        told = _who_could(case, subject, threads)
        told += _or_call(subject, threads[0]) if threads and not dead else ""
        # What has died comes before threads that only are where they should be.
        found[id(subject)] = f"{dead.text}; {told}" if dead else told, dead
    for group in alike(waiting, lambda s: _said_of(s, *found[id(s)])):
        first = group[0]
        told, dead = found[id(first)]
        told = _OWN.sub("their", told) if len(group) > 1 else told
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
                *_thread_facts(first, threads_of(case, first)),
                *common_facts(case, group),
            ),
            steps=(
                dump_step(first, "--each --locals"),
                *trace_steps(first),
            ),
            confidence=dead.confidence if dead else _BY_CALL if told.endswith(_CALL) else None,
            needs=_asked(case, first),
        )


def _asked(case: Case, subject: Subject) -> tuple[More, ...]:
    """Of an event loop its connections; else of the child that may have to fill the queue."""
    if subject.activity.family == "poll":
        return OPEN["poll"]
    children = [c for c in subject.rank.children if c.role == "subprocess" and not c.ended]
    return asked_first(case, subject, children)


def _said_of(subject: Subject, told: str, dead: Dead | None) -> tuple[object, ...]:
    """What is the same of those that are told of together; of who has a dead thread, all is."""
    activity = subject.activity
    alone = subject.number if dead is not None or activity.thread else None
    return activity.kind, activity.op, activity.at, told, alone


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


LOCK_WAIT = Rule(
    cause="lock-wait",
    title="A rank waits for a lock or thread of its own",
    seen="The main thread sleeps on a futex in threading.py or on a line of user code that takes "
    "a lock; two threads that both do are a deadlock. Or it waits while it imports, and a thread "
    "of it waits for a module that is being imported. Or a thread that answers a call by "
    "torch.distributed.rpc does, while ranks wait for that (confidence 0.60 where it waits to be "
    "woken, for that may be for another rank's call to do).",
    excluded="Most ranks are on the same line: that is an asynchronous collective.",
    confidence=0.82,
    next_steps=("Look at the other threads: one of them holds it", "hangtop dump --each --locals"),
    find=_lock,
    needs=(
        More("descriptors", "whether who holds the lock waits for a file or a peer"),
        More("native stacks", "whether it is a lock of Python or of C code"),
    ),
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
