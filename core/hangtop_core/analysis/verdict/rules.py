"""All rules, in the order they are asked: cheap and decisive first, causes before consequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.verdict import (
    collective,
    data,
    death,
    gpu,
    gpuwork,
    launch,
    logs,
    ports,
    process,
    python,
    ras,
    resources,
    startup,
    storage,
    threads,
    uneven,
)

if TYPE_CHECKING:
    from hangtop_core.analysis.verdict.base import Rule

RULES: tuple[Rule, ...] = (
    startup.UNREACHABLE,
    *gpu.FAILING,
    *death.RULES,
    *logs.RULES,
    *process.RULES,
    launch.MISCONFIGURED,
    startup.RENDEZVOUS,
    startup.NEVER_JOINED,
    python.PROMPT,
    threads.GIL_HELD,
    data.DEAD,
    data.FORK_DEADLOCK,
    data.STUCK,
    data.STARVED,
    storage.FILE_LOCK,
    resources.DISK_FULL,
    storage.IO_WAIT,
    python.OUTPUT,
    python.CHILD,
    python.REMOTE,
    threads.LOCK_WAIT,
    threads.QUEUE_WAIT,
    python.COMPILING,
    storage.CHECKPOINT,
    python.TEARDOWN,
    data.INLINE,
    startup.OUTSIDE_INIT,
    resources.THRASH,
    python.BUSY,
    gpuwork.THROTTLED,
    gpuwork.KERNEL_STUCK,
    collective.STRAGGLER,
    ras.STARTING,
    collective.MISSING,
    ras.BEHIND,
    ports.DOWN,
    gpuwork.SHARED,
    collective.P2P,
    uneven.UNEVEN,
    collective.MISMATCHED,
    launch.VERSIONS,
    collective.LONG_PHASE,
    collective.UNKNOWN,
)
