"""Programs and processes that a rank started and waits for: what they do, and whether for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.churn import aside, churned, short_lived
from hangtop_core.analysis.frames import is_library, library_run, plain_name
from hangtop_core.analysis.standing import FLOOR_S, GONE
from hangtop_core.analysis.verdict.base import Hit, Rule, Subject
from hangtop_core.analysis.verdict.callers import stack_of
from hangtop_core.analysis.verdict.descriptors import descriptor, name_descriptor
from hangtop_core.analysis.verdict.doing import (
    POOLS,
    QUEUES,
    READS,
    asked_first,
    does,
    drains,
    frames_of,
    in_c,
    waits_back,
)
from hangtop_core.analysis.verdict.evidence import common_facts, fact, sentence, who
from hangtop_core.analysis.verdict.naming import name_process, name_ranks, thread_text
from hangtop_core.analysis.verdict.needs import OF_CHILD, WHY_LEFT, More
from hangtop_core.analysis.verdict.outofmemory import child_facts
from hangtop_core.analysis.verdict.steps import on, strace_step, tails
from hangtop_core.logs.steps import KILLS
from hangtop_core.text import clean, duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.analysis.verdict.steps import Step
    from hangtop_core.descriptors import Descriptor
    from hangtop_core.diagnosis import Evidence
    from hangtop_core.model import Frame, Process

_HELPERS = ("dataloader-worker", "resource-tracker", "forkserver", "debug-server")
_MAY_WAIT = frozenset({"sleep", "queue", "join", "lock", "waiting"})
LATER_S = 2.0
"""Seconds by which workers of one pool are started apart at most; later ones replace others."""


def programs(subject: Subject) -> list[Process]:
    """Children that a program may wait for, the youngest first."""
    others = aside(subject.rank, subject.activity.main)
    some = (c for c in subject.rank.children if c.pid not in others)
    found = [c for c in some if c.role not in _HELPERS and c.gone_at is None]
    own = [c for c in found if c.ppid == subject.pid]
    return sorted(own, key=lambda c: -c.started_at) or found


def awaited(subject: Subject, children: Sequence[Process]) -> Sequence[Process]:
    """Of these the one that a rank waits for, where that is known."""
    wanted = subject.activity.main.child if subject.activity.main is not None else None
    return [child for child in children if child.pid == wanted] or children


def other_end(subject: Subject) -> list[Process]:
    """The children at the other end of the pipe or socket that a main thread waits on."""
    one = descriptor(subject)
    if one is None:
        return []
    pids = {h.pid for h in one.holders if h.pid != subject.pid}
    if one.socket is not None and one.socket.peer_pid is not None:
        pids = {one.socket.peer_pid}
    return [c for c in subject.rank.children if c.pid in pids and c.role not in _HELPERS]


def told_children(case: Case, subject: Subject, children: Sequence[Process]) -> str:
    """`pid 5 'tar x' (state S), which sleeps`: the first ones, the stopped before all others."""
    named = []
    for child in children[:3]:
        text = does(case, subject, child)
        named.append(f"{name_process(child)}{f', which {text}' if text else ''}")
    return "; ".join(named)


def _stopped_first(children: Iterable[Process]) -> list[Process]:
    return sorted(children, key=lambda c: c.state[:1] not in ("T", "t"))


def _child_steps(subject: Subject, children: Sequence[Process]) -> Iterator[Step]:
    for child in children[:1]:
        if child.state[:1] == "T":
            yield on(subject, f"kill -CONT {child.pid}", words="let it go on")
        yield on(subject, f"ls -l /proc/{child.pid}/fd")
        if child.state[:1] != "T":
            yield strace_step(subject, child.pid)


def _child_facts(case: Case, subject: Subject, children: Sequence[Process]) -> Iterator[Evidence]:
    for child in children[:4]:
        text = does(case, subject, child)
        main = child.main_thread
        kernel_says = f", {thread_text(main)}" if main is not None else ""
        yield fact(
            "process",
            subject.number,
            f"child {name_process(child)}{kernel_says}{f': {text}' if text else ''}"
            f"{in_c(case, subject, child)}",
        )


def _piped(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    """Who reads what a child of its own writes, by a pipe or a socket between them."""
    for subject in left:
        activity = subject.activity
        if activity.kind not in ("io", "remote") or activity.family not in READS:
            continue
        one, children = descriptor(subject), _stopped_first(other_end(subject))
        if one is None or not children:
            continue
        yield Hit(
            subjects=(subject,),
            summary=sentence(
                case,
                f"{who([subject])} waits at {activity.at}",
                case.since(subject),
                f"to read ({_end(one)}) what a program that it started writes: "
                f"{told_children(case, subject, children)}",
            ),
            evidence=(
                fact("process", subject.number, name_descriptor(one)),
                *_child_facts(case, subject, children),
                *common_facts(case, [subject]),
            ),
            steps=(
                *_child_steps(subject, children),
                *(
                    ("read all its pipes: communicate(), a thread for each, or stderr=DEVNULL",)
                    if any(waits_back(subject, child) for child in children)
                    else ()
                ),
            ),
        )


def _end(one: Descriptor) -> str:
    return f"fd {one.fd}, {clean(one.target, 60)}"


def _child(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    for subject in left:
        dying = _dying(case, subject)
        if subject.activity.kind != "child" and not (dying and subject.activity.kind in _MAY_WAIT):
            continue
        children = _stopped_first(programs(subject))
        pool = _in_pool(case, subject)
        told, sure = dying, True
        if pool and not told:
            workers, busy = _workers(case, subject, children)
            if workers and not busy:
                continue  # asked about as a queue that nobody fills
            told = at_task(case, subject, children)
        if not told:
            children = sorted(children, key=lambda c: c not in awaited(subject, children))
            named = told_children(case, subject, awaited(subject, children))
            told = "for a program it started" + (f": {named}" if named else "")
            sure = bool(children)
        unread = any(drains(frames_of(case, subject, child)) for child in children)
        yield Hit(
            subjects=(subject,),
            summary=sentence(
                case,
                f"{who([subject])} waits at {subject.activity.at}",
                case.since(subject),
                told + _at_exit(case, subject),
            ),
            evidence=(
                *_child_facts(case, subject, children),
                *_gone_facts(case, subject),
                *common_facts(case, [subject]),
            ),
            steps=(
                *((on(subject, text) for text in tails(subject.rank)) if pool else ()),
                *_child_steps(subject, children),
                "take everything out of the queue before join()"
                if unread
                else "a pool does not notice a worker that dies: concurrent.futures does"
                if pool
                else "give subprocess a timeout",
            ),
            confidence=None if sure else 0.8,
            needs=asked_first(case, subject, awaited(subject, children)),
        )


def _at_exit(case: Case, subject: Subject) -> str:
    """That a rank is behind its program, in what atexit calls: no module is on its stack."""
    stack = stack_of(case.snapshot.stacks, subject)
    if not stack or is_library(stack[-1]) or any(frame.name == "<module>" for frame in stack):
        return ""
    ended = [s for s in case.subjects if s.activity.kind in GONE]
    text = f"; the program of rank {subject.number} is most likely over: it is in what atexit calls"
    return f"{text}, and {name_ranks(ended)} ended" if ended else text


def _dying(case: Case, subject: Subject) -> str:
    """That children end as fast as they are started."""
    short = churned(subject.rank, case.at, case.reader)
    if not short:
        return ""
    status = next((c.exit_code for c in reversed(short) if c.exit_code is not None), None)
    ended = f" (one with exit status {status})" if status is not None and status > 0 else ""
    return (
        f"for processes that end as fast as they are started: {_came_and_went(case, short)}{ended}"
    )


def _came_and_went(case: Case, short: Sequence[Process]) -> str:
    lived = max((child.gone_at or 0.0) - child.started_at for child in short)
    return (
        f"{len(short)} were seen to come and go within {duration(case.at - short[0].started_at)}, "
        f"none lived for longer than {duration(max(lived, 1.0))}, the last one was pid "
        f"{short[-1].pid}"
    )


def _short(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    """Children that come and go while others wait, of which it is not known what they do."""
    for subject in left:
        short = short_lived(subject.rank, case.at)
        if subject.activity.kind != "child" or not short or case.waited_s < FLOOR_S:
            continue
        yield Hit(
            subjects=(subject,),
            summary=sentence(
                case,
                f"{who([subject])} waits at {subject.activity.at}",
                case.since(subject),
                f"for processes of which none stays: {_came_and_went(case, short)}; whether they "
                "get anything done was not seen",
            ),
            evidence=(*_gone_facts(case, subject), *common_facts(case, [subject])),
            steps=(
                *(on(subject, text) for text in tails(subject.rank)),
                on(
                    subject,
                    f"timeout 10 strace -f -e trace=exit_group -p {subject.pid}",
                    words="see with what status they end",
                ),
            ),
        )


def _gone_facts(case: Case, subject: Subject) -> Iterator[Evidence]:
    for child in short_lived(subject.rank, case.at)[-3:]:
        lived = (child.gone_at or 0.0) - child.started_at
        yield fact(
            "process",
            subject.number,
            f"child pid {child.pid} was started {duration(case.at - child.started_at)} ago and was "
            f"gone {duration(max(lived, 0.0))} later",
        )


def _in_pool(case: Case, subject: Subject) -> bool:
    """Whether a rank waits for what a multiprocessing.Pool makes."""
    run = library_run(stack_of(case.snapshot.stacks, subject))
    return any(part in frame.file for frame in run for part in POOLS)


def _workers(
    case: Case, subject: Subject, children: Sequence[Process]
) -> tuple[list[Process], list[Process]]:
    """The workers of a rank's pool, and those of them that have a task."""
    found = {c.pid: _worker(frames_of(case, subject, c)) for c in children}
    workers = [c for c in children if found[c.pid] is not None]
    return workers, [c for c in workers if found[c.pid] == "busy"]


def at_task(case: Case, subject: Subject, children: Sequence[Process]) -> str:
    """What those workers of a multiprocessing.Pool do that have a task."""
    workers, busy = _workers(case, subject, children)
    if not busy:
        return ""
    idle = len(workers) - len(busy)
    more = f"; {idle} of its {len(workers)} workers wait for tasks" if idle else ""
    return f"for a task of its pool, in {told_children(case, subject, busy)}{more}"


def _lost(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    """Who waits for a pool of which nobody has a task: whoever had it is gone."""
    for subject in left:
        if subject.activity.kind != "child" or not _in_pool(case, subject):
            continue
        children = programs(subject)
        workers, busy = _workers(case, subject, children)
        if not workers or busy or _dying(case, subject):
            continue
        began = min(c.started_at for c in workers)
        late = [c for c in workers if c.started_at - began > LATER_S]
        all_of_it = f"all {len(workers)} workers of it wait"
        text = (
            f"for a task of its pool, but {all_of_it if len(workers) > 1 else 'its worker waits'} "
            "for tasks: most likely another one has gone with the task it had"
        )
        if late:
            text += (
                f"; pid {late[0].pid} was started {duration(late[0].started_at - began)} after the "
                "others, as in the place of one that has gone"
            )
        yield Hit(
            subjects=(subject,),
            summary=sentence(
                case, f"{who([subject])} waits at {subject.activity.at}", case.since(subject), text
            ),
            evidence=(
                *_child_facts(case, subject, workers),
                *child_facts(case, subject, short_lived(subject.rank, case.at)),
                *_gone_facts(case, subject),
                *common_facts(case, [subject]),
            ),
            steps=(
                *(on(subject, text) for text in tails(subject.rank)),
                on(subject, KILLS),
                "a pool does not notice a worker that dies: concurrent.futures does",
            ),
        )


def _worker(stack: Sequence[Frame]) -> str | None:
    """Whether a process is a worker of a pool, `idle` or `busy`; None for anything else."""
    names = [(plain_name(frame.name), any(part in frame.file for part in POOLS)) for frame in stack]
    at = next((i for i, one in enumerate(names) if one == ("worker", True)), None)
    if at is None:
        return None
    waits = at > 0 and names[at - 1][0] == "get" and stack[at - 1].file.endswith(QUEUES)
    return "idle" if waits else "busy"


SHORT = Rule(
    cause="child-process-wait",
    title="A rank waits for processes of which none stays",
    seen="While others wait, children of the rank come and go, of one command line and within "
    "seconds each: a program that is run again and again, or a pool that replaces its workers.",
    excluded="They are known to fail: see below.",
    confidence=0.5,
    next_steps=("Read what they print", "See with what status they end"),
    find=_short,
    states=frozenset({"progressing"}),
    complete="it is told of jobs that get on, and who is gone cannot be asked",
)
PIPED = Rule(
    cause="child-process-wait",
    title="A rank reads what a program it started does not write",
    seen="The main thread is in a read of a pipe or socket whose other end a child of the rank "
    "has. Told is what that does: it is stopped, sleeps, or is itself blocked in a pipe that only "
    "the rank reads or writes, so that both wait for each other.",
    excluded="Nobody, or another process, has the other end: `io-wait`.",
    confidence=0.92,
    next_steps=("kill -CONT, if it is stopped", "Read all pipes of the program: communicate()"),
    find=_piped,
    needs=(More("descriptors", "who has the other end of what it reads"),),
)
LOST = Rule(
    cause="queue-wait",
    title="A pool has lost a worker, and the task that this had",
    seen="A rank waits for a result of a multiprocessing.Pool, and all its workers wait for tasks: "
    "the one that had the task is gone, and nobody will put the result into the pool's queue.",
    excluded="A worker has a task, or they end as fast as they are started: `child-process-wait`.",
    confidence=0.9,
    next_steps=("Look for a worker that was killed", "Use concurrent.futures, which notices that"),
    find=_lost,
    needs=WHY_LEFT,
)
CHILD = Rule(
    cause="child-process-wait",
    title="A rank waits for a program it started",
    seen="subprocess or multiprocessing waits in the stack, or waitpid in user code. Told is what "
    "the child does; of a pool which worker has a task, or that they end as fast as they are "
    "started.",
    excluded="The child is a DataLoader worker, or compiles. All workers of a pool wait for tasks: "
    "`queue-wait`.",
    confidence=0.92,
    next_steps=("Look at what the child does", "Give subprocess a timeout"),
    find=_child,
    needs=OF_CHILD,
)
