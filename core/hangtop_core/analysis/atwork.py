"""Whether a rank that is always met in one place works, or only looks or tries again."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hangtop_core.analysis.activity import uses_cuda
from hangtop_core.analysis.idle import in_task, is_idle
from hangtop_core.model.frames import is_library
from hangtop_core.model.meters import latest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.analysis.activity import Activity, Reader
    from hangtop_core.model.snapshot import Frame, Rank

COUNTS = re.compile(
    r"for\s(?:(?!\sin\s).)*\sin\s+(?:\w+\.)*(?:range|count|repeat|cycle|iter)\s*\((?!\s*len\b)"
)
"""A `for` that says only how often: of attempts as well as of work."""
_UNTIMED = "waiter.acquire()"
"""The line of Condition.wait without a timeout, Python 3.2 to 3.15."""
COMPUTES_SHARE = 0.03
"""Cores it takes at least which computes, also on a machine with too much to do."""


def failed(frames: Sequence[Frame]) -> bool:
    """Whether it sleeps in an `except`: what it computes in between is another attempt."""
    return any(text.startswith("except") for one in frames for _, text in one.beside or ())


def _after_try(frames: Sequence[Frame]) -> bool:
    """Whether it sleeps in a loop behind a `try`, but in none that goes from thing to thing."""
    own = next((one for one in frames if not is_library(one)), None)
    if own is None or goes_through((own,)):
        return False
    loops = [line for line, text in own.within or () if text.startswith(("for ", "while "))]
    beside = own.beside or ()
    return bool(loops) and any(line > loops[-1] and "with " not in text for line, text in beside)


def goes_through(frames: Sequence[Frame]) -> bool:
    """Whether the innermost loop around a sleep of the user's own goes from one thing to the next.

    A `while` looks again whether something has come, and a `for` over a number may count attempts.
    """
    if not frames or is_library(frames[0]):
        return False
    for depth, frame in enumerate(frames):
        loops = [text for _, text in frame.within or () if text.startswith(("for ", "while "))]
        if loops:
            last = loops[-1]
            things = last.startswith("for ") and COUNTS.match(last) is None
            return things and not failed(frames[: depth + 1])
    return False


def all_awaited(stacks: Sequence[Sequence[Frame]]) -> bool:
    """Whether all that a rank's threads read and write is of those its main thread waits for.

    A heartbeat is a thread of its own. Whoever fills a queue may be none of those that live.

    Args:
        stacks: of its threads, that of the main thread first.
    """
    others = [one for one in stacks[1:] if not is_idle(one)]
    if stacks and any("/concurrent/futures/" in frame.file for frame in stacks[0]):
        return bool(others) and all(map(in_task, others))
    return len(others) == 1 and any(frame.name.endswith("join") for frame in stacks[0][:8])


def given(rank: Rank, stacks: Sequence[Sequence[Frame]]) -> float | None:
    """When a main thread that waits for futures without a timeout was last woken: one was done.

    Args:
        rank: that waits.
        stacks: of its threads, that of the main thread first.
    """
    main = next(iter(stacks), ())
    untimed = bool(main) and main[0].source == _UNTIMED and main[0].file.endswith("/threading.py")
    futures = any("/concurrent/futures/" in frame.file for frame in main)
    return rank.left_at if untimed and futures else None


def moved_much(rank: Rank) -> float | None:
    """When it last wrote much, or read much of a file that it keeps open."""
    read = rank.read_at if rank.read_at is not None and _reads_on(rank) else None
    return latest((rank.wrote_at, read))


def _reads_on(rank: Rank) -> bool:
    """Whether it has a file open in whose midst it reads.

    Whoever looks again whether a file says something else opens it each time, or is at its end.
    """
    return any(
        one.fd > 2
        and one.kind == "file"
        and "r" in one.mode
        and 0 < (one.position or 0) < (one.size or 0)
        for one in rank.opened
    )


def retries(rank: Rank, frames: Sequence[Frame] = ()) -> bool:
    """Whether a rank that writes much by turns may get nothing written, where a disk is full.

    Whoever saves in pieces keeps its file open; who tries again has none open meanwhile, or one
    that is full. Where nobody has looked at its files, it is taken to get on. Shared memory, and
    what is deleted, nobody saves to. Whoever sleeps in an `except`, or in a `while` after a `try`,
    tries again.
    """
    if failed(frames) or _after_try(frames):
        return True
    writes = [
        one
        for one in rank.opened
        if one.fd > 2
        and one.kind == "file"
        and "w" in one.mode
        and not one.target.startswith(("/dev/shm/", "/memfd:"))  # noqa: S108  # only compared
        and not one.target.endswith(" (deleted)")
    ]
    return rank.descriptors is not None and all(one.full for one in writes)


def tries(rank: Rank, reader: Reader) -> bool:
    """Whether a rank that sleeps does so between attempts: they fail, or others have a lock."""
    if any(one.locked == "by others" for one in rank.opened):
        return True
    threads = rank.sample.threads if rank.sample is not None else ()
    return bool(threads) and failed(reader.frames(threads[0].stack))


def asks_in_vain(rank: Rank, activity: Activity) -> bool:
    """Whether a rank in state D wakes up only to ask a file server again that does not answer.

    So seen on Linux 6.1 in stat() on an NFS mount: its thread ran every few seconds.
    """
    blocked = activity.main is not None and activity.main.state == "D"
    table = rank.descriptors
    return blocked and table is not None and any(one.trouble for one in table.servers)


def computes(rank: Rank, activity: Activity) -> bool:
    """Whether a main thread runs native code without the GIL, which no GPU makes it wait in."""
    takes = (rank.main_cpu_share or 0.0) >= COMPUTES_SHARE
    return in_native_code(activity) and takes and not uses_cuda(rank.process)


def in_native_code(activity: Activity) -> bool:
    """Whether a thread runs while no thread of its process has the GIL."""
    return activity.kind == "busy" and activity.running and activity.owner is None
