"""Threads and workers that only wait for work, and those that are in a task of a pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.frames import is_library, plain_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.model import Frame

_EXECUTOR = "/concurrent/futures/thread.py"
_WORKERS = (
    (_EXECUTOR, ("_worker",)),
    ("/multiprocessing/pool.py", ("_handle_tasks", "_handle_results", "_handle_workers", "worker")),
    ("/multiprocessing/queues.py", ("_feed",)),
    ("/concurrent/futures/process.py", ("run", "_process_worker")),
    ("/tqdm/_monitor.py", ("run",)),
)
"""Where threads of libraries wait for something to do."""
_WAITS = (
    "/queue.py",
    "/threading.py",
    "/selectors.py",
    "/multiprocessing/queues.py",
    "/multiprocessing/connection.py",
    "/multiprocessing/synchronize.py",
    "/multiprocessing/pool.py",
    "/concurrent/futures/process.py",
)
"""What they wait by."""
FUTURES = frozenset({"result", "exception", "wait", "as_completed", "result_iterator"})
"""Functions that wait for futures."""


def is_idle(stack: Sequence[Frame]) -> bool:
    """Whether a thread waits for work, as those of pools do, and those that feed them."""
    for frame in stack:
        if any(plain_name(frame.name) in names and file in frame.file for file, names in _WORKERS):
            return True
        if is_library(frame) and frame.file.endswith(_WAITS):
            continue
        return False
    return False


def in_task(stack: Sequence[Frame]) -> bool:
    """Whether a thread is in a task that a pool of threads runs."""
    return not is_idle(stack) and any(
        plain_name(frame.name) == "_worker" and frame.file.endswith(_EXECUTOR) for frame in stack
    )
