"""What something costs: memory and processor of processes, processor of a piece of work."""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

TICKS = os.sysconf("SC_CLK_TCK")
"""Of /proc, in a second."""


def memory(pids: Iterable[int | str] = ("self",)) -> float:
    """MiB resident in processes, or in this one, proc_pid_statm(5)."""
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def processor(pids: Iterable[int]) -> float:
    """Seconds of processor that processes have used, without their children, proc_pid_stat(5)."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(one[11]) + int(one[12]) for one in fields) / TICKS


def cost(work: Callable[[], object]) -> float:
    """Milliseconds of this thread's processor time, the collector of garbage apart."""
    gc.collect()
    gc.disable()
    try:
        began = time.thread_time()
        work()
        return (time.thread_time() - began) * 1000
    finally:
        gc.enable()


def best(work: Callable[[], object], rounds: int = 5) -> float:
    """The least that it costs in some runs: other programs do not count."""
    return min(cost(work) for _ in range(rounds))
