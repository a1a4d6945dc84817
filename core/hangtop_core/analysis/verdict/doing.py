"""What a child of a rank does, for sentences, and whether it waits for its rank in turn."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from hangtop_core.analysis.idle import accepts, is_idle
from hangtop_core.analysis.kernel import waits_in
from hangtop_core.analysis.native import called
from hangtop_core.analysis.standing import HALTED
from hangtop_core.analysis.verdict.callers import stack_of
from hangtop_core.analysis.verdict.needs import OF_CHILD, More, of_child
from hangtop_core.analysis.verdict.pipes import command, connected, program_below
from hangtop_core.analysis.verdict.requestwaits import is_loop_wait
from hangtop_core.model.frames import plain_name, where

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hangtop_core.analysis.activity import Activity
    from hangtop_core.analysis.verdict.base import Subject
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model.file_log import Call
    from hangtop_core.model.snapshot import Frame, Process

POOLS = ("/multiprocessing/pool.py", "/multiprocess/pool.py", "/billiard/pool.py")
QUEUES = ("/multiprocessing/queues.py", "/multiprocess/queues.py")
_BEGINS = ("_bootstrap", "spawn_main")
"""Functions that a process begins in which multiprocessing has started."""
_WORKS = (*POOLS, "/concurrent/futures/process.py")
_WORKERS = ("worker", "_process_worker")
READS = frozenset({"pipe-read", "read", "socket"})
_WRITES = frozenset({"pipe-write", "write", "socket"})
CONNECTED = frozenset({"poll", "socket"})
"""Families of waits in which connections tell for whom."""
_INHERITED = More("descriptors", "which of its connections that child has inherited")
_SENDS = frozenset({"sendto", "sendmsg"})


def asked(subject: Subject, child: Process, activity: Activity) -> tuple[More, ...]:
    """What would tell more of a child that its rank waits for: asked of it, by how it sleeps.

    What it has inherited is told from what is its own by what the rank has open.
    """
    if child.ended:
        return ()
    connections, native = OF_CHILD
    if activity.family in CONNECTED:
        return (*of_child([connections], child.pid), _INHERITED)
    python = child.pid in subject.rank.child_samples
    return of_child([native], child.pid) if activity.family == "futex" and python else ()


def asked_first(case: Case, subject: Subject, children: Sequence[Process]) -> tuple[More, ...]:
    """What would tell more of the first of the children that a rank may wait for."""
    live = [child for child in children if not child.ended][:1]
    samples = subject.rank.child_samples
    return tuple(
        more
        for child in live
        for more in asked(subject, child, case.reader.process(child, samples.get(child.pid)))
    )


def does(case: Case, subject: Subject, child: Process) -> str:
    """What a child does, for sentences: `is stopped by a signal (state T)`."""
    if child.ended:
        return "has ended"
    sample = subject.rank.child_samples.get(child.pid)
    activity = case.reader.process(child, sample)
    if activity.kind in HALTED:
        return activity.text
    if is_idle(frames_of(case, subject, child)):
        return "waits for a task"
    if accepts(frames_of(case, subject, child)):
        return f"waits for requests at {where(activity.site)}"
    back = waits_back(subject, child)
    at = f" at {where(activity.site)}" if activity.site is not None else ""
    if drains(frames_of(case, subject, child)):
        return (
            f"has done its work and waits until what it has put into a queue is taken out of it{at}"
        )
    if back:
        return f"{back}{at}"
    main, below = child.main_thread, program_below(subject.rank, child)
    named = ""
    if below is not None:
        own = below.ppid == child.pid
        named = ": " if own else "; below that one: "
        named += f"pid {below.pid} {command(below)} (state {below.state})"
        named += connected(subject.rank, [below.pid])
    if sample is not None and sample.threads and activity.kind != "unknown":
        if main is not None and main.syscall in _SENDS and activity.kind == "remote":
            to = connected(subject.rank, [child.pid])
            return f"is itself blocked in sending{at}{to}, where nobody takes it"
        to = connected(subject.rank, [child.pid]) if activity.family in CONNECTED else ""
        return f"{activity.text}{at}{to}{named if activity.kind == 'child' else ''}"
    if below is not None:
        return f"waits for a program that it started itself{named}"
    family = waits_in(main)
    told = {
        "pipe-write": "is blocked writing to a pipe",
        "pipe-read": "is blocked reading a pipe",
        "sleep": "sleeps",
        "futex": "waits for a lock or a thread of its own",
        "socket": "waits for a network peer",
        "child": "waits for a program that it started itself",
        "file-lock": "waits for a file lock",
        "poll": "waits in poll",
    }
    if main is not None and main.state == "D":
        return "is in uninterruptible sleep (state D)"
    if main is not None and main.state == "R":
        return "runs"
    to = connected(subject.rank, [child.pid]) if family in ("poll", "socket") else ""
    return told[family] + to if family in told else ""


def waits_for_work(stack: Sequence[Frame]) -> bool:
    """Whether a process waits for a task, a request, or for what its event loop is to do next."""
    return is_idle(stack) or accepts(stack) or is_loop_wait(stack)


def name_child(case: Case, subject: Subject, child: Process) -> str:
    """`multiprocessing child (pid 5)`, `pool worker (pid 5)`; of another its program's name.

    Of one that has ended neither stack nor command line is left, but what its rank waits in.
    """
    stack, own = frames_of(case, subject, child), subject.rank.process
    kind = ""
    if any(f.file.endswith(_WORKS) and plain_name(f.name) in _WORKERS for f in stack):
        kind = "pool worker"
    elif "--multiprocessing-fork" in child.cmdline or by_multiprocessing(stack):
        kind = "multiprocessing child"
    elif child.ended and child.comm == own.comm and child.cmdline in ((), own.cmdline):
        files = (frame.file for frame in stack_of(case.snapshot.stacks, subject))
        kind = "multiprocessing child" if any("/multiprocess" in file for file in files) else ""
    elif not stack and child.cmdline and child.cmdline == own.cmdline:
        kind = "forked child"
    return f"{kind or f'child {child.label}'} (pid {child.pid})"


def by_multiprocessing(calls: Iterable[Call | Frame]) -> bool:
    """Whether frames are those of a process that multiprocessing has started."""
    return any("/multiprocess" in one.file and plain_name(one.name) in _BEGINS for one in calls)


def in_c(case: Case, subject: Subject, child: Process) -> str:
    """`; its C frames are in GOMP_parallel (team.c:9)`, where a child was asked for them."""
    inside = called(list(takewhile(lambda one: one.native, frames_of(case, subject, child))))
    return f"; its C frames are {inside}" if inside else ""


def frames_of(case: Case, subject: Subject, child: Process) -> tuple[Frame, ...]:
    """The frames of a child's main thread, innermost first."""
    sample = subject.rank.child_samples.get(child.pid)
    if sample is None or not sample.threads:
        return ()
    return case.snapshot.stacks.get(sample.threads[0].stack, ())


def drains(stack: Sequence[Frame]) -> bool:
    """Whether a process that has done its work waits for the thread that fills its queue's pipe."""
    return any(
        plain_name(frame.name) == "_finalize_join" and frame.file.endswith(QUEUES)
        for frame in stack
    )


def waits_back(subject: Subject, child: Process) -> str:
    """That a child waits for its rank in turn, by a pipe between them; empty where it does not."""
    main = child.main_thread
    family = waits_in(main)
    if main is None or main.fd is None or family not in READS | _WRITES:
        return ""
    verb, ends = ("write", "reads") if family in _WRITES - READS else ("read", "writes")
    names = {0: "stdin", 1: "stdout", 2: "stderr"}
    told = f"its {names[main.fd]}" if main.fd in names else f"fd {main.fd}"
    others = _at_other_end(subject, child, main.fd, ends)
    waits = subject.pid if child.ppid not in _workers(subject) else child.ppid
    if waits not in others or family == "socket":
        return ""
    alone = "only" if others <= {waits, child.pid} else "also"
    whom = "this rank" if waits == subject.pid else "that worker"
    full = ", which is full" if verb == "write" else ""
    return (
        f"is itself blocked {'writing to' if verb == 'write' else 'reading'} {told}{full}: a pipe "
        f"that {alone} {whom} {ends}, so they wait for each other"
    )


def _at_other_end(subject: Subject, child: Process, fd: int, ends: str) -> set[int]:
    """Who has the other end of a child's descriptor, by its table or, unread, by its rank's."""
    table = subject.rank.child_descriptors.get(child.pid)
    one = table.of(fd) if table is not None else None
    if one is not None:
        return {h.pid for h in one.holders if h.how.startswith(ends)}
    worker = child.ppid in _workers(subject)
    parent = subject.rank.child_descriptors.get(child.ppid) if worker else subject.rank.descriptors
    if fd not in (1, 2) or len(child.outputs) < fd or parent is None:
        return set()
    target = child.outputs[fd - 1]
    mine = (d for d in parent.descriptors if d.target == target)
    found = next((d for d in mine if target.startswith("pipe:") and d.mode == "r"), None)
    return {child.ppid if worker else subject.pid} if found is not None else set()


def _workers(subject: Subject) -> set[int]:
    """The DataLoader workers of a rank: they start programs of their own."""
    return {c.pid for c in subject.rank.children if c.role == "dataloader-worker"}
