"""Decide whether a process has run since its stacks were read: if not, they are unchanged.

A thread that does not run cannot change its stack, and none gets onto a CPU without a mark in
/proc/PID/task/TID/schedstat (time on a CPU, time it waited for one, how often it got one;
Documentation/scheduler/sched-stats.rst). In a hung job this spares nearly every py-spy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, Generic, Optional, Tuple, TypeVar

from . import procfs

if TYPE_CHECKING:
    Mark = Tuple[Tuple[int, bytes], ...]
    """Threads and how far each has run."""

T = TypeVar("T")

NO_PYTHON = frozenset(["gloo_tcp_loop", "pt_nccl_watchdg", "pt_nccl_heartbt", "pt_nccl2_heartbt"])
"""Threads that wake up all the time and never run Python: gloo/transport/tcp/loop.cc, and torch
2.13 torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp."""
MAX_THREADS = 512
_MAX_KEPT = 512


def mark(pid: int) -> Optional[Mark]:
    """Return how far each thread of ``pid`` that may run Python has run.

    None where one runs now, where there are too many, or where the kernel does not count.
    """
    found = []
    base = "/proc/%d/task/" % pid
    tids = procfs.numbers(base)
    if not tids or len(tids) > MAX_THREADS:
        return None
    for tid in tids:
        stat = procfs.parse_stat(procfs.read("%s%d/stat" % (base, tid)) or b"")
        if stat is None or stat.state == "R":
            return None
        if stat.comm in NO_PYTHON:
            continue
        ran = procfs.read("%s%d/schedstat" % (base, tid), 128)
        if not ran or not procfs.parse_schedstat(ran):
            return None
        found.append((tid, ran))
    return tuple(found)


def main_mark(pid: int) -> Optional[bytes]:
    """Return how far the main thread has run; None where it runs now, or is not counted."""
    base = "/proc/%d/task/%d/" % (pid, pid)
    stat = procfs.parse_stat(procfs.read(base + "stat") or b"")
    if stat is None or stat.state == "R":
        return None
    return procfs.read(base + "schedstat", 128) or None


class Rested(Generic[T]):
    """Results for processes that have not run since."""

    def __init__(self) -> None:
        self._kept: Dict[Tuple[int, int], Tuple[Mark, T]] = {}

    def find(self, identity: Tuple[int, int], now: Optional[Mark]) -> Optional[T]:
        """Return the result read of a process at the mark ``now``, or None."""
        kept = self._kept.get(identity)
        return kept[1] if kept is not None and now is not None and kept[0] == now else None

    def keep(
        self, identity: Tuple[int, int], before: Optional[Mark], after: Optional[Mark], what: T
    ) -> None:
        """Keep a result read between two marks, if the process did not run meanwhile."""
        self._kept.pop(identity, None)
        if before is not None and before == after:
            while len(self._kept) >= _MAX_KEPT:
                self._kept.pop(next(iter(self._kept)), None)
            self._kept[identity] = before, what
