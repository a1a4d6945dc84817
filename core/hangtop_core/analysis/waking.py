"""Main threads that were met running, though all they do is wake up and go back to sleep."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from hangtop_core.model import Process, Rank, Thread

IDLE_SHARE = 0.01
"""Cores below which who was met running does not compute, also where there is much to do."""
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
