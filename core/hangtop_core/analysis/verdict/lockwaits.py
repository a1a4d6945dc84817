"""Ranks in which threads wait for a lock, and which other ones of theirs may have it."""

from __future__ import annotations

import re
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.analysis.sourcelines import by_source
from hangtop_core.analysis.verdict import locks
from hangtop_core.analysis.verdict.base import Hit, Rule, Subject, alike
from hangtop_core.analysis.verdict.callers import handles_signals, in_handler
from hangtop_core.analysis.verdict.endings import dead_thread
from hangtop_core.analysis.verdict.evidence import common_facts
from hangtop_core.analysis.verdict.needs import More
from hangtop_core.analysis.verdict.onethread import OneThread, threads_of
from hangtop_core.analysis.verdict.sentences import sentence, several, since, who
from hangtop_core.analysis.verdict.steps import dump_step, trace_steps
from hangtop_core.analysis.verdict.threadwords import (
    BY_CALL,
    import_deadlock,
    is_by_call,
    or_call,
    said_of,
    theirs,
    thread_facts,
    wait_of,
    why_others,
)
from hangtop_core.model.frames import plain_name
from hangtop_core.text.commands import Advice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.analysis.verdict.endings import Dead

_OWN_WORD = re.compile(r"3\.(?:1[4-9]|[2-9]\d|\d{3,})(?!\d)")
"""Releases of CPython in which each thread sleeps on a word of its own: from 3.14 on."""


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
        told += or_call(subject, threads[0]) if threads and not dead else ""
        told = f": {tangle.text}" if tangle else f"; {told}"
        found[id(subject)] = _Wait(wait_of(activity, threads[0]), told, tangle, dead)
    waiting = [s for s in left if id(s) in found]
    for group in alike(waiting, lambda s: said_of(s, found[id(s)].told, found[id(s)].dead)):
        yield _locked(case, group, found[id(group[0])])


def _locked(case: Case, group: Sequence[Subject], wait: _Wait) -> Hit:
    first, dead, tangle = group[0], wait.dead, wait.tangle
    told = theirs(wait.told) if len(group) > 1 else wait.told
    main = f"{who(group)} {several(wait.text, group)} {since(case, group)}".rstrip()
    by_call = is_by_call(wait.told)
    return Hit(
        subjects=tuple(group),
        summary=sentence(case, f"{main}{told}"),
        evidence=(
            *(dead.facts if dead else ()),
            *thread_facts(first, threads_of(case, first)),
            *common_facts(case, group),
        ),
        steps=(
            dump_step(first, "--each --locals"),
            *trace_steps(first),
        ),
        confidence=sure.confidence if (sure := tangle or dead) else BY_CALL if by_call else None,
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
            *thread_facts(subject, threads),
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
        evidence=(*thread_facts(subject, threads), *common_facts(case, [subject])),
        steps=(
            Advice(
                f"take what waits out of the import at {subject.activity.at}: start threads, "
                "and wait for them, in a function that is called later"
            ),
            *trace_steps(subject),
        ),
        confidence=0.85,
    )


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
