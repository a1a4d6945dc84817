"""What a child of a rank does, for sentences, and whether it waits for its rank in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis import kernel
from hangtop_core.analysis.activity import main_thread
from hangtop_core.analysis.frames import plain_name, where
from hangtop_core.analysis.idle import is_idle
from hangtop_core.analysis.verdict.pipes import command, connected, program_below

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.analysis.verdict.base import Subject
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model import Frame, Process

QUEUES = ("/multiprocessing/queues.py", "/multiprocess/queues.py")
_READS = frozenset({"pipe-read", "read", "socket"})
_WRITES = frozenset({"pipe-write", "write", "socket"})


def does(case: Case, subject: Subject, child: Process) -> str:
    """What a child does, for sentences: `is stopped by a signal (state T)`."""
    if child.ended:
        return "has ended"
    sample = subject.rank.child_samples.get(child.pid)
    activity = case.reader.process(child, sample)
    if activity.kind in ("stopped", "traced", "frozen", "core-dump"):
        return activity.text
    if is_idle(frames_of(case, subject, child)):
        return "waits for a task"
    back = waits_back(subject, child)
    at = f" at {where(activity.site)}" if activity.site is not None else ""
    if drains(frames_of(case, subject, child)):
        return (
            f"has done its work and waits until what it has put into a queue is taken out of it{at}"
        )
    if back:
        return f"{back}{at}"
    if sample is not None and sample.threads and activity.kind != "unknown":
        return f"{activity.text}{at}"
    below = program_below(subject.rank, child)
    if below is not None:
        return (
            f"waits for a program that it started itself: pid {below.pid} {command(below)} "
            f"(state {below.state}){connected(subject.rank, [below.pid])}"
        )
    main = main_thread(child)
    family = kernel.kernel_wait(main.wchan, main.syscall) if main is not None else None
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
    return told.get(family or "", "")


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
    main = main_thread(child)
    family = kernel.kernel_wait(main.wchan, main.syscall) if main is not None else None
    if main is None or main.fd is None or family not in _READS | _WRITES:
        return ""
    verb, ends = ("write", "reads") if family in _WRITES - _READS else ("read", "writes")
    names = {0: "stdin", 1: "stdout", 2: "stderr"}
    told = f"its {names[main.fd]}" if main.fd in names else f"fd {main.fd}"
    others = _at_other_end(subject, child, main.fd, ends)
    if subject.pid not in others or family == "socket":
        return ""
    alone = "only" if others <= {subject.pid, child.pid} else "also"
    full = ", which is full" if verb == "write" else ""
    return (
        f"is itself blocked {'writing to' if verb == 'write' else 'reading'} {told}{full}: a pipe "
        f"that {alone} this rank {ends}, so they wait for each other"
    )


def _at_other_end(subject: Subject, child: Process, fd: int, ends: str) -> set[int]:
    """Who has the other end of a child's descriptor, by its table or, unread, by its rank's."""
    table = subject.rank.child_descriptors.get(child.pid)
    one = next((d for d in table.descriptors if d.fd == fd), None) if table is not None else None
    if one is not None:
        return {h.pid for h in one.holders if h.how.startswith(ends)}
    if fd not in (1, 2) or len(child.outputs) < fd or subject.rank.descriptors is None:
        return set()
    target = child.outputs[fd - 1]
    mine = (d for d in subject.rank.descriptors.descriptors if d.target == target)
    found = next((d for d in mine if target.startswith("pipe:") and d.mode == "r"), None)
    return {subject.pid} if found is not None else set()
