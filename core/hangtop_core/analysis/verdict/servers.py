"""Servers that wait for requests: whether nobody asks them for anything, or somebody is stuck.

Of a rank that reads a queue no stack tells who fills it. Where that can only be a server of its
own that nobody has asked for anything, it does what it is to do, however long that takes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hangtop_core.analysis.eventloops import is_loop
from hangtop_core.analysis.idle import FUTURES, accepts, at_request, between_requests, is_idle
from hangtop_core.analysis.standing import FLOOR_S
from hangtop_core.analysis.verdict.base import ALWAYS, Hit, Rule, Subject
from hangtop_core.analysis.verdict.doing import QUEUES, name_child
from hangtop_core.analysis.verdict.endings import dead_child, dead_thread, lost_children
from hangtop_core.analysis.verdict.evidence import common_facts, fact
from hangtop_core.analysis.verdict.onethread import OneThread, threads_of
from hangtop_core.analysis.verdict.sentences import sentence, who
from hangtop_core.analysis.verdict.steps import dump_step
from hangtop_core.commands import Advice
from hangtop_core.places import port_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Literal

    from hangtop_core.analysis.kinds import Kind
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.descriptors import Descriptor
    from hangtop_core.model import DescriptorTable, Process, Thread

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
_WAITS: frozenset[Kind] = frozenset({"queue", "join", "lock", "remote"})
_TIMED = re.compile(r"\bwait\(\s*[^)\s]")
"""A wait that ends by itself: of who reports or looks after something now and then."""
_FROM_CHILDREN = (*QUEUES, "/multiprocessing/connection.py")
_OPEN = ("ESTABLISHED", "CLOSE_WAIT")


def awaits_requests(case: Case) -> tuple[Subject, ...]:
    """The ranks that only wait for requests, where all others wait for what these would pass on."""
    some = case.suspects
    if not some or any(s.activity.kind not in _WAITS or s.activity.by_thread for s in some):
        return ()
    if any(s.activity.op not in _GIVEN for s in case.waiters) or case.seats:
        return ()
    return some if all(_doors(case, s) for s in some) else ()


def _doors(case: Case, subject: Subject) -> list[str]:
    """What of a rank waits for requests; nothing where it may wait for anything else."""
    threads = threads_of(case, subject)
    if not threads:
        return []
    main, rest = threads[0], threads[1:]
    table = subject.rank.descriptors
    roles = [_role(table, one) for one in threads]
    if roles[0] != "door" and not _reads(subject, main, rest):
        return []
    if roles[0] == "door" and subject.activity.op == "accept" and not _in_server_loop(main):
        return []  # who waits for one to connect, and then goes on
    if not all(roles[1:]):
        return []
    found = [one.name for one, role in zip(rest, roles[1:], strict=True) if role == "door"]
    found = ["", *found] if roles[0] == "door" else found
    if any(frame.file.endswith(_FROM_CHILDREN) for frame in main.frames):
        children = _children(case, subject)
        if children is None:
            return []
        found += children
    if not found or lost_children(subject):
        return []
    dead = dead_thread(case, subject, threads) or dead_child(case, subject)
    return found if dead is None else []


def _role(table: DescriptorTable | None, one: OneThread) -> Literal["door", "idle", ""]:
    """Whether a thread waits for requests, for work, or for anything else."""
    frames = one.frames
    if accepts(frames):
        return "door"
    if between_requests(frames):
        return "idle"
    if at_request(frames):
        return ""
    if is_loop(frames):
        return "door" if _serves(table, one.facts) else ""
    if is_idle(frames) or one.family == "sleep":
        return "idle"
    if one.reading.kind == "queue" and one.reading.op in ("get", "recv", "recv_bytes"):
        return "idle"
    timed = any(_TIMED.search(frame.source or "") for frame in frames)
    return "idle" if one.reading.kind == "lock" and timed else ""


def _reads(subject: Subject, main: OneThread, rest: Sequence[OneThread]) -> bool:
    """Whether a main thread, or one that it joins, waits in a loop to be given something to do."""
    kind, op = subject.activity.kind, subject.activity.op
    if kind == "join":
        return all(_in_server_loop(one) for one in rest if one.reading.kind == "queue")
    asks = op in FUTURES | {"put", "join"} if kind == "queue" else op not in ("wait", "wait_for")
    return kind != "remote" and not asks and not is_loop(main.frames) and _in_server_loop(main)


def _in_server_loop(main: OneThread) -> bool:
    """Whether a queue is read in a `while`, and in no `for`, as far as that is known.

    Who trains takes so many batches, or those of so many epochs.
    """
    known = [frame.within for frame in main.frames if frame.within is not None]
    texts = [text for blocks in known for _, text in blocks]
    loops = [text for text in texts if text.startswith(("for ", "async for ", "while "))]
    return not known or (bool(loops) and all(text.startswith("while ") for text in loops))


def _serves(table: DescriptorTable | None, facts: Thread | None) -> bool:
    """Whether an event loop watches a port of its own, and nobody who is connected waits there."""
    if table is None or facts is None or facts.fd is None:
        return False
    watched = {fd for d in table.descriptors if d.fd == facts.fd for fd in d.watches}
    ports = _ports([d for d in table.descriptors if d.fd in watched], ("LISTEN",))
    quiet = [d for d in table.descriptors if d.socket is not None and d.socket.answered]
    return bool(ports) and not ports & _ports(
        [d for d in table.descriptors if d not in quiet], _OPEN
    )


def _ports(some: Sequence[Descriptor], states: tuple[str, ...]) -> set[str]:
    """The own ports of TCP sockets in these states."""
    sockets = [d.socket for d in some if d.socket is not None and d.socket.family == "tcp"]
    return {port_of(one.local) for one in sockets if one.state in states}


def _children(case: Case, subject: Subject) -> list[str] | None:
    """The children that wait for requests; None where one may have something else to do."""
    found = []
    for child in subject.rank.children:
        if child.role != "subprocess" or child.ended or _looks_after(child):
            continue
        sample = subject.rank.child_samples.get(child.pid)
        table = subject.rank.child_descriptors.get(child.pid)
        stacks = [case.reader.frames(one.stack) for one in sample.threads] if sample else []
        if not stacks or any(at_request(one) and not between_requests(one) for one in stacks):
            return None
        main = stacks[0]
        if accepts(main) or (is_loop(main) and _serves(table, child.main_thread)):
            found.append(f"its {name_child(case, subject, child)}")
        elif not is_idle(main):
            return None
    return found


def _looks_after(child: Process) -> bool:
    """Whether it is one that multiprocessing starts beside others, and that does nothing itself."""
    return any("resource_tracker" in part for part in child.cmdline)


def _idle(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    there = {id(s) for s in left}
    if case.waiters and case.waited_s < FLOOR_S:
        return
    for subject in awaits_requests(case):
        if id(subject) not in there:
            continue
        doors = _doors(case, subject)
        where = f"it waits at {subject.activity.at} {case.since(subject)}".rstrip()
        where += f", {' and '.join(doors[:3])}" if doors[0] else ""
        yield Hit(
            subjects=(subject,),
            summary=sentence(
                case,
                f"{who([subject])} most likely waits for requests, which is no hang: {where} for "
                "somebody to connect, and no thread is at a request",
            ),
            evidence=(
                *(
                    fact("stacks", subject.number, f"{one.name} is at {one.place}")
                    for one in threads_of(case, subject)[:6]
                ),
                *common_facts(case, [subject]),
            ),
            steps=(
                Advice("send it a request: if no answer comes, it is stuck"),
                dump_step(subject, "--each --locals"),
            ),
        )


WAITS_FOR_REQUESTS = Rule(
    cause="long-phase",
    title="A server waits for requests",
    seen="A rank reads a queue in a `while`, or serves itself; a thread of it, or a child where "
    "that fills the queue, waits for somebody to connect (`serve_forever`, `accept`, an event loop "
    "with a port of its own where nobody is connected whom it owes an answer, by TCP_INFO); all "
    "its other threads wait for work, and all other ranks in a broadcast, scatter or recv. It is "
    "not called hung then.",
    excluded="A thread is at a request, or anything else; a thread or child of it has died.",
    confidence=0.7,
    next_steps=("Send it a request",),
    find=_idle,
    states=ALWAYS,
    complete="it rests on the stacks of all threads, and on the connections of event loops, which "
    "are read by then",
)
