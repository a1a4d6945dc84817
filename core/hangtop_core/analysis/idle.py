"""Threads and workers that only wait for work, and those that are in a task of a pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.model.frames import is_library, plain_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.model.snapshot import Frame

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


_SERVER = "/socketserver.py"
_SERVERS = (
    (_SERVER, ("serve_forever", "handle_request")),
    ("/gunicorn/workers/sync.py", ("wait",)),
    ("/gunicorn/workers/gthread.py", ("run",)),
    ("/grpc/_server.py", ("_serve", "wait_for_termination")),
)
"""Where servers wait for somebody to connect."""
_ACCEPTS = ("/socket.py", "/multiprocessing/connection.py")
_WAITS_THERE = ("/selectors.py", "/threading.py", "/grpc/_common.py", *_ACCEPTS)
_BETWEEN = ("/multiprocessing/", "/multiprocess/", "/debugpy/", "/pydevd")
_READS = ("/socket.py", "/ssl.py", "/http/server.py")


def accepts(stack: Sequence[Frame]) -> bool:
    """Whether a thread of a server waits for somebody to connect.

    Not one by which processes of multiprocessing, or a debugger, get at one another.
    """
    accepting = False
    for frame in stack:
        name, file = plain_name(frame.name), "/" + frame.file
        if name == "accept" and file.endswith(_ACCEPTS):
            accepting = True
        elif accepting:
            return not any(part in file for part in _BETWEEN)
        elif any(name in names and file.endswith(of) for of, names in _SERVERS):
            return True
        elif not file.endswith(_WAITS_THERE) and not frame.native:
            return False
    return accepting


def at_request(stack: Sequence[Frame]) -> bool:
    """Whether a thread serves who has connected, by the classes of socketserver."""
    return any(
        plain_name(frame.name) in ("process_request_thread", "finish_request")
        and frame.file.endswith(_SERVER)
        for frame in stack
    )


def between_requests(stack: Sequence[Frame]) -> bool:
    """Whether it waits there for the next request to begin: a connection that is kept open."""
    for frame in stack:
        if plain_name(frame.name) == "handle_one_request":
            return frame.file.endswith(_READS[-1])
        if not frame.native and not ("/" + frame.file).endswith(_READS):
            return False
    return False


def in_task(stack: Sequence[Frame]) -> bool:
    """Whether a thread is in a task that a pool of threads runs."""
    return not is_idle(stack) and any(
        plain_name(frame.name) == "_worker" and frame.file.endswith(_EXECUTOR) for frame in stack
    )
