"""How a main thread's wait for other threads of its rank is worded, by the frames that it is in."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hangtop_core.analysis.verdict.evidence import fact
from hangtop_core.model.frames import library_run, plain_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.analysis.activity import Activity
    from hangtop_core.analysis.verdict.base import Subject
    from hangtop_core.analysis.verdict.endings import Dead
    from hangtop_core.analysis.verdict.onethread import OneThread
    from hangtop_core.diagnosis import Evidence
    from hangtop_core.model.snapshot import Frame

BY_CALL = 0.6
"""Confidence where another rank may have to call."""
_CALL = "; or a call by another rank is to do that, and has not come"
_OWN = re.compile(r"\bits\b")
_THREADING = "/threading.py"
_IMPORTS = "<frozen importlib._bootstrap>"


def wait_of(activity: Activity, main: OneThread) -> str:
    """`waits for a lock at train.py:7 (f)`, and no more than is true of a line that is unknown."""
    text = activity.text
    if activity.kind == "waiting":
        text = "sleeps inside of a call, in a lock or in what else waits on a futex,"
    elif in_barrier(main.frames):
        text = "waits in a threading.Barrier until enough threads have come"
    elif activity.kind == "lock" and is_to_be_woken(main.frames):
        text = "waits for another thread to wake it (Condition or Event)"
    return f"{text} at {activity.at}"


def why_others(main: OneThread) -> str:
    """What the other threads of a rank are named for."""
    if in_barrier(main.frames):
        return "its other threads, of which one may have to come"
    if main.reading.kind is None and not main.takes_lock:
        return "its other threads"
    return "who may have to" if is_to_be_woken(main.frames) else "who may hold it"


def is_to_be_woken(stack: Sequence[Frame]) -> bool:
    """Whether it is in a wait of threading.py, which ends when another thread says so.

    A semaphore, and a lock with a timeout, wait so, too, but within `acquire`.
    """
    names = {plain_name(frame.name) for frame in stack[:8] if frame.file.endswith(_THREADING)}
    return bool(names & {"wait", "wait_for"}) and not names & {"acquire", "__enter__"}


def in_barrier(stack: Sequence[Frame]) -> bool:
    """Whether it is in a Barrier of threading.py, the one class there that has `_wait`."""
    names = {plain_name(frame.name) for frame in stack[:8] if frame.file.endswith(_THREADING)}
    return "_wait" in names and is_to_be_woken(stack)


def blocks_loop(stack: Sequence[Frame]) -> bool:
    """Whether an event loop of asyncio runs below a wait that is not the loop's own."""
    run = len(library_run(stack))
    inner, outer = stack[:run], stack[run:]
    runs = any(
        "/asyncio/" in frame.file and plain_name(frame.name) in ("_run_once", "run_forever")
        for frame in outer
    )
    return runs and not any("/asyncio/" in frame.file for frame in inner)


def import_deadlock(main: OneThread, others: Sequence[OneThread]) -> OneThread | None:
    """Return the thread that waits for a module which the main thread is still importing.

    Importing takes a lock for each module; whoever imports one, and waits at its top level for a
    thread that imports it as well, waits for ever.
    """
    if not _imports(main):
        return None
    waiting = [one for one in others if _wants_module(one.frames)]
    # Who still imports may be the one that they wait for.
    if any(_imports(one) for one in others if one not in waiting):
        return None
    return waiting[0] if waiting else None


def _imports(one: OneThread) -> bool:
    return any(frame.file == _IMPORTS for frame in one.frames)


def _wants_module(stack: Sequence[Frame]) -> bool:
    top = next((frame for frame in stack if not frame.native), None)
    return top is not None and top.file == _IMPORTS and plain_name(top.name) == "acquire"


def or_call(subject: Subject, waits: OneThread) -> str:
    """That a call which waits to be woken may wait for another call, of a rank that has left."""
    woken = subject.activity.kind == "queue" or is_to_be_woken(waits.frames)
    return _CALL if subject.activity.serving and woken else ""


def is_by_call(told: str) -> bool:
    """Whether a text says that another rank may have to call."""
    return told.endswith(_CALL)


def theirs(told: str) -> str:
    """The same of several ranks."""
    return _OWN.sub("their", told)


def said_of(subject: Subject, told: str, dead: Dead | None) -> tuple[object, ...]:
    """What is the same of those that are told of together; of who has a dead thread, all is."""
    activity = subject.activity
    alone = subject.number if dead is not None or activity.thread else None
    return activity.kind, activity.op, activity.at, told, alone


def thread_facts(subject: Subject, threads: Sequence[OneThread]) -> list[Evidence]:
    """Where the threads of a rank are, the first few."""
    return [
        fact(
            "stacks",
            subject.number,
            f"{one.name} (tid {one.stack.tid}) {one.does} at {one.place}{one.futex}",
        )
        for one in threads[:6]
    ]
