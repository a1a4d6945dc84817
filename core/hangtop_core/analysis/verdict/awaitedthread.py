"""What a thread does for which a main thread waits: that is where the cause is.

A main thread waits for a future, a queue or a lock, and the thread that would have to give it is
blocked itself: by a peer that is silent, the lock of a file, a full pipe; or it writes a
checkpoint. Rules then ask about that thread as they do about main threads. Which thread it is, is
told only where nothing else can be meant.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hangtop_core.analysis.activity import doing
from hangtop_core.model.frames import is_library, library_run, plain_name
from hangtop_core.text.clean import clean

if TYPE_CHECKING:
    from hangtop_core.analysis.activity import Activity, Reader
    from hangtop_core.model.snapshot import Process, Rank, StackSample, ThreadStack
    from hangtop_core.stacks.kinds import Kind

FOR_THREADS: frozenset[Kind] = frozenset({"join", "queue", "lock"})
"""What a main thread does that waits for another thread of its process."""
_BLOCKED: frozenset[Kind] = frozenset({"remote", "file-lock", "io", "output", "child"})
_IDLE: frozenset[Kind] = frozenset({"queue", "idle-worker", "lock", "sleep", "pin-memory"})
"""What threads do that have nothing to do, or only look after something; none that runs a task
of a pool."""
_POOL = "/concurrent/futures/thread.py"
_SERVES = ("/socketserver.py", "/selectors.py", "/asyncio/", "/http/server.py")
_ACCEPTS = frozenset({"accept", "accept4", "epoll_wait", "epoll_pwait", "select"})
"""Who waits for somebody to call is no helper."""
_TALKS = re.compile(r"\.(recv\w*|send\w*|connect)\(")
"""Calls of a socket: with a timeout they wait in poll."""


def with_helper(rank: Rank, activity: Activity, reader: Reader) -> Activity:
    """What a rank that waits for its threads does, or what the one is blocked in that is meant."""
    if activity.by_thread or rank.sample is None:
        return activity
    threads = rank.sample.threads
    # What it called itself: below may be who started it, as torch.multiprocessing.spawn.
    called = "".join("/" + one.file for one in library_run(reader.frames(threads[0].stack)))
    if len(threads) < 2 or "/multiprocessing/" in called:
        return activity
    future = "/concurrent/futures/" in called
    does = [
        (one, _talking(thread_activity(rank.process, rank.sample, one, reader)))
        for one in threads[1:]
    ]
    does = [(one, what) for one, what in does if not _rests(what)]
    able = [
        (one, what)
        for one, what in does
        if (future or what.kind not in _IDLE) and _is_meant(one, what, future, reader)
    ]
    if activity.kind == "lock" and any(_wants_lock(what) for _, what in does):
        return activity  # they may wait for one another
    if not able or (len(able) > 1 and not future) or not all(map(_is_blocked, able)):
        return activity
    thread, what = able[0]
    lock = activity.kind == "lock" and activity.op not in ("wait", "wait_for")
    waits = "waits for a lock" if lock else f"waits in {activity.op or 'a queue'}"
    return replace(
        what,
        by_thread=True,
        thread=clean(thread.name or str(thread.tid), 60),
        awaited=f"{waits} at {activity.at}",
    )


def thread_activity(
    process: Process, sample: StackSample, one: ThreadStack, reader: Reader
) -> Activity:
    """What a thread does, as it would be said of a main thread."""
    read, facts = reader.thread(process, one)
    return doing(read, one, sample, facts, facts.state if facts is not None else "?")


def _rests(what: Activity) -> bool:
    """Whether it is a thread of a pool that has nothing to do."""
    top = what.top
    return top is not None and plain_name(top.name) == "_worker" and _POOL in "/" + top.file


def _is_meant(thread: ThreadStack, what: Activity, future: bool, reader: Reader) -> bool:
    """Whether it may be this one: of a pool, where it is a future, else one in the user's code."""
    if future:
        return reader.uses(thread.stack, _POOL)
    return what.site is not None and not is_library(what.site)


def _is_blocked(one: tuple[ThreadStack, Activity]) -> bool:
    """Whether that is what keeps the main thread: it is blocked, or still writes a checkpoint."""
    what = one[1]
    main = what.main
    if what.kind == "checkpoint":
        return True
    if what.kind not in _BLOCKED or what.running or main is None or what.op == "accept":
        return False
    top = what.top.file if what.top is not None else ""
    return main.syscall not in _ACCEPTS and not any(part in "/" + top for part in _SERVES)


def _talking(what: Activity) -> Activity:
    """The same, where it waits in poll on a line that sends or receives."""
    source = what.top.source if what.top is not None else None
    if what.kind != "waiting" or what.family != "poll" or not _TALKS.search(source or ""):
        return what
    return replace(what, kind="remote", text="waits for a network peer")


def _wants_lock(what: Activity) -> bool:
    return what.kind == "lock" or (what.kind == "waiting" and what.family == "futex")
