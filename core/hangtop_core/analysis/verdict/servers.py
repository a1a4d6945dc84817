"""Servers that wait for requests: whether nobody asks them for anything, or somebody is stuck.

Of a rank that reads a queue no stack tells who fills it. Where that can only be a server of its
own, or a controller of the job, that nobody has asked for anything, it does what it is to do,
however long that takes. A controller that is stuck keeps ranks waiting in the same way.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.analysis.eventloops import is_loop
from hangtop_core.analysis.idle import FUTURES, accepts, at_request, between_requests, is_idle
from hangtop_core.analysis.standing import GONE, left_at
from hangtop_core.analysis.verdict.base import Subject, besides
from hangtop_core.analysis.verdict.controllers import (
    Controller,
    controllers,
    first_stuck,
    is_unread,
    lost_controller,
)
from hangtop_core.analysis.verdict.doing import QUEUES, name_child
from hangtop_core.analysis.verdict.endings import dead_child, dead_thread, lost_children
from hangtop_core.analysis.verdict.requestwaits import (
    SHARED,
    Server,
    in_server_loop,
    is_endless,
    request_wait,
    role,
    server,
    serves,
    uses_zmq,
)
from hangtop_core.diagnosis import STALLED_AFTER_S, RequestWait
from hangtop_core.text.clean import clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.analysis.verdict.onethread import OneThread
    from hangtop_core.diagnosis import JobState
    from hangtop_core.model.snapshot import Process
    from hangtop_core.stacks.kinds import Kind

_GIVEN = frozenset(
    {
        "broadcast",
        "broadcast_object_list",
        "scatter",
        "scatter_object_list",
        "recv",
        "irecv",
        "recv_object_list",
    }
)
"""What the other ranks of a server wait in for what they are to do; no part of a training step."""
_WAITS: frozenset[Kind] = frozenset(
    {"queue", "join", "lock", "remote", "waiting", "busy", "sleep", "store"}
)
"""What the main thread of a rank may do that only waits for requests; a loop may spin for them."""
_SUPERVISES: frozenset[Kind] = frozenset({"child", "teardown", "join", "sleep", "lock", "waiting"})
"""What the main thread of a program does that only looks after those it has started."""
_MAY_SERVE = frozenset({"hung", "unknown", "progressing"})
LOOKS_SHARE = 0.02
"""Cores that a main thread uses at most which only looks for requests again and again: that of an
actor of Ray 0.007."""
_FROM_CHILDREN = (*QUEUES, "/multiprocessing/connection.py")


class Serving(NamedTuple):
    """A job whose ranks all wait for requests, or for what those would pass on that do."""

    waits: tuple[RequestWait, ...]
    stuck: Controller | None
    """The controller for which all wait, where one is stuck or does not answer."""
    state: JobState
    """`idle` where nobody asks it for anything; `progressing` where a controller is at work."""


def serving(case: Case) -> Serving | None:
    """Return how a job waits for requests; None where a rank does, or waits for, anything else."""
    if case.progress.state not in _MAY_SERVE:
        return None
    some = [s for s in case.suspects if s.activity.kind not in GONE]
    if len(some) + len(case.waiters) < len(case.subjects) or not some:
        return None
    if any(not _may_wait(s) or s.activity.by_thread for s in some):
        return None
    if any(s.activity.op not in _GIVEN for s in case.waiters) or (case.waiters and case.seats):
        return None
    others = controllers(case)
    if lost_controller(case):
        return None
    waits = []
    for subject in some:
        by = _wait_of(case, subject, others)
        if by is None:
            return None
        waits.append(by)
    moving = (case.at - s.standing.since < STALLED_AFTER_S for s in case.waiters)
    if any(moving) or not all(map(_rests, repeat(case), some, waits)):
        return None
    waits += [_told(one.name, None, one.process, str(one.wait)) for one in others if one.wait]
    stuck = first_stuck(others)
    state = _state(others, stuck)
    return Serving(tuple(waits), stuck, "unknown" if is_unread(case) and not stuck else state)


def at_work(case: Case) -> tuple[Subject, ...]:
    """Suspects without those that wait for requests, where others have taken one.

    Where ranks wait in a collective, who waits for its next request has not joined them.
    """
    others = controllers(case) if not case.waiters else []
    if not others or len(case.suspects) < 2:
        return case.suspects
    some = [s for s in case.suspects if s.activity.kind in _WAITS and not s.activity.by_thread]
    idle = [s for s in some if _wait_of(case, s, others) is not None]
    return tuple(besides(case.suspects, idle)) or case.suspects


def _may_wait(subject: Subject) -> bool:
    return subject.activity.kind in _WAITS or _supervises(subject)


def _supervises(subject: Subject) -> bool:
    """Whether a program that the user named may only look after those that it has started."""
    return subject.rank.process.is_program and subject.activity.kind in _SUPERVISES


def _state(others: Sequence[Controller], stuck: Controller | None) -> JobState:
    if stuck is not None:
        return "hung"
    if any(one.works for one in others):
        return "progressing"
    return "unknown" if any(one.is_held or one.is_asked for one in others) else "idle"


def _rests(case: Case, subject: Subject, by: RequestWait) -> bool:
    """Whether a main thread waits for a while, and at most wakes up to look.

    What the other threads of its process use of a CPU is of libraries: those of Ray never rest.
    """
    rank, sample = subject.rank, subject.rank.sample
    since = sample.same_functions_since if sample is not None else None
    left, used = left_at(rank), rank.main_cpu_share or 0.0
    asleep = left is None or case.at - left >= STALLED_AFTER_S
    looks = used < LOOKS_SHARE or by.text.startswith(SHARED)
    return since is not None and case.at - since >= STALLED_AFTER_S and (asleep or looks)


def _told(
    who: str, rank: int | None, process: Process, text: str, *, is_proven: bool = True
) -> RequestWait:
    """What a node has said is cleaned: people read it."""
    node, pid = process.node, process.pid
    return RequestWait(clean(who, 120), rank, node, pid, clean(text, 300), is_proven)


def _wait_of(case: Case, subject: Subject, others: Sequence[Controller]) -> RequestWait | None:
    """By what a rank waits for requests; None where it may wait for anything else."""
    rank = subject.rank
    who, number, process = rank.name, rank.rank, rank.process
    one = server(case, rank.process, rank.sample, rank.descriptors)
    found = request_wait(one)
    if found is not None and found.outside and _is_whole(case, subject, one):
        reads_pipe = any(f.file.endswith(_FROM_CHILDREN) for f in one.threads[0].frames)
        proven = found.is_served or any(each.is_door for each in others)
        may_come = (
            any(each.may_ask for each in others) if reads_pipe else is_endless(one.threads[0])
        )
        if (proven or may_come) and _children(case, subject) is not None:
            return _told(who, number, process, str(found), is_proven=proven)
    doors = _doors(case, subject, one) or _served_below(case, subject, one)
    threads = f", {' and '.join(doors[:3])} for somebody to connect" if any(doors) else ""
    text = f"{subject.activity.op or 'a wait'} at {subject.activity.at}{threads}"
    return _told(who, number, process, text) if doors else None


def _is_whole(case: Case, subject: Subject, one: Server) -> bool:
    """Whether no child or thread of it has died, for which it would wait in vain."""
    threads = list(one.threads)
    dead = dead_thread(case, subject, threads) or dead_child(case, subject)
    return not lost_children(subject) and dead is None


def _doors(case: Case, subject: Subject, one: Server) -> list[str]:
    """What of a rank waits for requests; nothing where it may wait for anything else."""
    if not one.threads:
        return []
    main, rest = one.threads[0], one.threads[1:]
    roles = [role(one, each) for each in one.threads]
    if roles[0] != "door" and not _reads(subject, main, rest):
        return []
    once = subject.activity.op == "accept" and not in_server_loop(main)
    if roles[0] == "door" and (once or uses_zmq(main)):
        return []  # who waits for one to connect, or for one message, and then goes on
    if not all(roles[1:]):
        return []
    found = [each.name for each, what in zip(rest, roles[1:], strict=True) if what == "door"]
    found = ["", *found] if roles[0] == "door" else found
    if any(frame.file.endswith(_FROM_CHILDREN) for frame in main.frames):
        children = _children(case, subject)
        if children is None:
            return []
        found += children
    return found if found and _is_whole(case, subject, one) else []


def _served_below(case: Case, subject: Subject, one: Server) -> list[str]:
    """The children that wait for requests of a program that only looks after such."""
    if not _supervises(subject) or not all(role(one, each) for each in one.threads[1:]):
        return []
    return [] if lost_children(subject) else _children(case, subject) or []


def _reads(subject: Subject, main: OneThread, rest: Sequence[OneThread]) -> bool:
    """Whether a main thread, or one that it joins, waits in a loop to be given something to do."""
    kind, op = subject.activity.kind, subject.activity.op
    if kind == "join":
        return all(in_server_loop(one) for one in rest if one.reading.kind == "queue")
    asks = op in FUTURES | {"put", "join"} if kind == "queue" else op not in ("wait", "wait_for")
    waits = kind in ("queue", "lock") and not asks
    return waits and not is_loop(main.frames) and in_server_loop(main)


def _children(case: Case, subject: Subject) -> list[str] | None:
    """The children that wait for requests; None where one may have something else to do."""
    found = []
    for child in subject.rank.children:
        if child.role != "subprocess" or child.ended or _looks_after(child):
            continue
        sample = subject.rank.child_samples.get(child.pid)
        table = subject.rank.child_descriptors.get(child.pid)
        one = server(case, child, sample, table)
        stacks: Iterable[OneThread] = one.threads
        if not one.threads or any(_is_asked(each) for each in stacks):
            return None
        main = one.threads[0].frames
        waits = accepts(main) or (is_loop(main) and serves(table, child.main_thread))
        asks = request_wait(one)
        if waits or (asks is not None and asks.outside):
            found.append(f"its {name_child(case, subject, child)}")
        elif not is_idle(main):
            return None
    return found


def _is_asked(one: OneThread) -> bool:
    return at_request(one.frames) and not between_requests(one.frames)


def _looks_after(child: Process) -> bool:
    """Whether it is one that multiprocessing starts beside others, and that does nothing itself."""
    return any("resource_tracker" in part for part in child.cmdline)
