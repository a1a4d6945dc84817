"""When a thread last ran: `se.exec_start` of /proc/PID/task/TID/sched on a clock everybody has.

That value is on the run queue clock of the CPU the thread ran on (kernel/sched/core.c,
rq_clock_task). Where the kernel takes time stolen by a hypervisor or spent in interrupts out of
it, every CPU's clock falls behind by its own amount, by hours over weeks: comparing it with
another CPU's would make a busy thread look as if it had slept since then. So the clock of the
very CPU is read, by a helper that goes there for a moment.
"""

from __future__ import annotations

import os
import time
from typing import Dict, NamedTuple, Optional

from ..wire.guard import Guard, Hanging
from . import procfs

_KEEP = 10.0
"""Seconds a CPU's clock counts as known: stolen time makes it drift."""


class _Reading(NamedTuple):
    at: float
    behind: Optional[float]
    """Seconds by which the CPU's clock is behind the monotonic one; None if unknown."""


class RunClock:
    """Turns `se.exec_start` into a time on the monotonic clock."""

    def __init__(self) -> None:
        self._guard = Guard(2)
        self._readings: Dict[int, _Reading] = {}

    def ran_at(self, cpu: Optional[int], exec_start: Optional[float]) -> Optional[float]:
        """Return when a thread last ran on ``cpu``, in monotonic seconds; None if unknown.

        It is unknown on a CPU this process may not use, and where ``exec_start`` (milliseconds)
        is None.
        """
        if cpu is None or exec_start is None:
            return None
        now = time.monotonic()
        known = self._readings.get(cpu)
        if known is None or now - known.at > _KEEP:
            known = self._readings[cpu] = _Reading(now, self._read(cpu))
        return None if known.behind is None else exec_start / 1000 + known.behind

    def _read(self, cpu: int) -> Optional[float]:
        """A CPU that a real-time task keeps busy would hold the helper up: it gets a moment."""
        try:
            return self._guard.call(lambda: behind(cpu), 0.5)
        except (Hanging, OSError):
            return None


def behind(cpu: int) -> Optional[float]:
    """Return how far the clock of ``cpu`` is behind, in seconds, by running there.

    Moves the calling thread; OSError where it may not go there. A thread that runs right now has
    an exec_start that is a scheduler tick old at most.
    """
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        start = procfs.parse_exec_start(procfs.read("/proc/thread-self/sched") or b"")
        now = time.monotonic()
    finally:
        os.sched_setaffinity(0, allowed)
    return None if start is None else now - start / 1000
