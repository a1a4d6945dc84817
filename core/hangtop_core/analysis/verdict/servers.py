"""Servers that wait for requests: whether nobody asks them for anything, or somebody is stuck.

Of a rank that reads a queue no stack tells who fills it. Where that can only be a server of its
own, or a controller of the job, that nobody has asked for anything, it does what it is to do,
however long that takes. A controller that is stuck keeps ranks waiting in the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.analysis.eventloops import is_loop
from hangtop_core.analysis.idle import FUTURES, accepts, at_request, between_requests, is_idle
from hangtop_core.analysis.standing import FLOOR_S, GONE
from hangtop_core.analysis.verdict.controllers import Controller, controllers, first_stuck
from hangtop_core.analysis.verdict.doing import QUEUES, name_child
from hangtop_core.analysis.verdict.endings import dead_child, dead_thread, lost_children
from hangtop_core.analysis.verdict.requestwaits import (
    Server,
    in_server_loop,
    request_wait,
    role,
    server,
    serves,
    uses_zmq,
)
from hangtop_core.diagnosis import RequestWait

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hangtop_core.analysis.kinds import Kind
    from hangtop_core.analysis.verdict.base import Subject
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.analysis.verdict.onethread import OneThread
    from hangtop_core.diagnosis import JobState
    from hangtop_core.model import Process

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
    some = [s for s in case.suspects if s.activity.kind not in GONE]
    if len(some) + len(case.waiters) < len(case.subjects) or not some:
        return None
    if any(s.activity.kind not in _WAITS or s.activity.by_thread for s in some):
        return None
    if any(s.activity.op not in _GIVEN for s in case.waiters) or (case.waiters and case.seats):
        return None
    others = controllers(case)
    waits = []
    for subject in some:
        by = _wait_of(case, subject, others)
        if by is None:
            return None
        process = subject.rank.process
        name = f"rank {subject.number}"
        waits.append(RequestWait(name, subject.number, process.node, process.pid, by))
    if any(case.at - s.standing.since < FLOOR_S for s in (*some, *case.waiters)):
        return None
    waits += [_of_controller(one) for one in others if one.wait is not None]
    stuck = first_stuck(others)
    return Serving(tuple(waits), stuck, _state(others, stuck))


def _state(others: Sequence[Controller], stuck: Controller | None) -> JobState:
    if stuck is not None:
        return "hung"
    if any(one.works for one in others):
        return "progressing"
    return "unknown" if any(one.is_held or one.is_asked for one in others) else "idle"


def _of_controller(one: Controller) -> RequestWait:
    process = one.process
    return RequestWait(one.name, None, process.node, process.pid, str(one.wait))


def _wait_of(case: Case, subject: Subject, others: Sequence[Controller]) -> str | None:
    """By what a rank waits for requests; None where it may wait for anything else."""
    rank = subject.rank
    one = server(case, rank.process, rank.sample, rank.descriptors)
    found = request_wait(one)
    if found is not None and found.outside and _is_whole(case, subject, one):
        reads_pipe = any(f.file.endswith(_FROM_CHILDREN) for f in one.threads[0].frames)
        if (others or not reads_pipe) and _children(case, subject) is not None:
            return str(found)
    doors = _doors(case, subject, one)
    threads = f", {' and '.join(doors[:3])} for somebody to connect" if any(doors) else ""
    return f"{_call(subject)} at {subject.activity.at}{threads}" if doors else None


def _is_whole(case: Case, subject: Subject, one: Server) -> bool:
    """Whether no child or thread of it has died, for which it would wait in vain."""
    threads = list(one.threads)
    dead = dead_thread(case, subject, threads) or dead_child(case, subject)
    return not lost_children(subject) and dead is None


def _call(subject: Subject) -> str:
    return subject.activity.op or "waits"


def _doors(case: Case, subject: Subject, one: Server) -> list[str]:
    """What of a rank waits for requests; nothing where it may wait for anything else."""
    if not one.threads:
        return []
    main, rest = one.threads[0], one.threads[1:]
    roles = [role(one.table, each) for each in one.threads]
    if roles[0] != "door" and not _reads(subject, main, rest):
        return []
    once = subject.activity.op == "accept" or uses_zmq(main)
    if roles[0] == "door" and once and not in_server_loop(main):
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
