"""Main threads of which it says little that they run: all they do is wake up and sleep again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hangtop_core.model.frames import plain_name
from hangtop_core.stacks.kinds import COMMUNICATION

if TYPE_CHECKING:
    from hangtop_core.analysis.activity import Activity
    from hangtop_core.model.snapshot import Process, Rank, StackSample, Thread, ThreadStack

IDLE_SHARE = 0.01
"""Cores below which who was met running does not compute, also where there is much to do."""
ASKS_SHARE = 0.03
"""The same of one that asks for the GIL every 5 ms."""
OWNER_SHARE = 0.1
"""Cores that a process gets at least in which a thread keeps the GIL and computes, also where there
is far too much to do."""
_ASLEEP = ("futex", None)
"""On what it sleeps; not known where it was read on its way into that, or out of it."""
_RECEIVES = frozenset({"readinto", "read", "recv", "recv_into"})
"""Functions of Python's socket.py and ssl.py that give what has come, or raise an exception."""
SLEPT_S = 10.0
"""Seconds for which it counts in what a main thread was last met asleep."""


def met_asleep(process: Process, at: float) -> tuple[Thread, float] | None:
    """Return the main thread of a process and the time, where it sleeps."""
    main = process.main_thread
    return (main, at) if main is not None and main.state in ("S", "D") else None


def as_it_slept(rank: Rank) -> Process | None:
    """Return a rank's process with its main thread asleep, as it was met a moment before.

    None where it uses a CPU, or was not met asleep lately: then that it runs tells what it does.
    """
    share = rank.main_cpu_share
    if rank.slept is None or share is None or share >= IDLE_SHARE:
        return None
    main, at = rank.slept
    if rank.moved_at is not None and rank.moved_at - at > SLEPT_S:
        return None
    process = rank.process
    threads = (main, *(one for one in process.threads if one.tid != process.pid))
    return msgspec.structs.replace(process, threads=threads)


def asking(found: Activity, rank: Rank) -> Activity:
    """Return what a main thread does that seems to wait for other ranks, but asks for the GIL.

    Who waits for others sleeps until they come. Whom a thread keeps from the GIL wakes up every
    5 ms to ask for it: it runs between most readings, computes nothing, and stays in its
    functions for at least half as long as is looked back.
    """
    sample, lately, main = rank.sample, rank.lately, found.main
    if found.family not in _ASLEEP or found.kind not in COMMUNICATION or main is None:
        return found
    if sample is None or sample.same_functions_since is None or lately is None:
        return found
    owner = _other_owner(sample, main)
    if owner is None:
        return found
    same_s = sample.at - sample.same_functions_since
    share = rank.main_cpu_share
    wakes = share is not None and share < ASKS_SHARE and 2 * lately.left >= lately.span_s
    keeps = lately.share >= OWNER_SHARE if owner.active else lately.share < 2 * ASKS_SHARE
    if not (wakes and keeps and same_s >= lately.span_s / 2):
        return found
    return msgspec.structs.replace(found, kind="gil", text="waits for the GIL")


def may_ask(found: Activity, rank: Rank) -> bool:
    """Whether it may be one of those, and has not been watched for long enough to tell.

    Then that it runs says nothing: it was met in a wait while a thread that sleeps had the GIL.
    """
    if found.family not in _ASLEEP or found.kind not in COMMUNICATION or found.main is None:
        return False
    if rank.lately is not None or rank.sample is None:
        return False
    owner = _other_owner(rank.sample, found.main)
    return owner is not None and not owner.active and (rank.main_cpu_share or 0.0) < ASKS_SHARE


def woken_by_data(activity: Activity) -> bool:
    """Whether only what it waits for wakes a thread up: a disk, a socket, the end of its pipe.

    The bytes of a long write, and of fsync, are counted when the call returns; those of a socket
    are not counted at all. A read with a timeout polls, and raises an exception when that is over.
    """
    uninterruptible = activity.main is not None and activity.main.state == "D"
    if uninterruptible or activity.family == "pipe-write":
        return True
    if activity.kind in COMMUNICATION:
        return False
    top = activity.top
    receives = (
        activity.family == "poll"
        and top is not None
        and top.file.endswith(("/socket.py", "/ssl.py"))
        and plain_name(top.name) in _RECEIVES
    )
    return receives or activity.family in ("pipe-read", "socket")


def _other_owner(sample: StackSample, main: Thread) -> ThreadStack | None:
    """The thread that has the GIL, if it is not the main thread."""
    owner = next((one for one in sample.threads if one.gil), None)
    return owner if owner is not None and owner.tid != main.tid else None
