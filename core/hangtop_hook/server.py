"""torch's C++ worker server on a unix socket of the rank, which answers also while the GIL is held.

`torch._C._distributed_c10d._WorkerServer`: in torch 2.4 and 2.8 (tried) it takes a path, in 2.13
and 2.15 a path and a port. It runs a pool of threads that sleep until a request comes, prints one
line on standard error when it starts, and offers what this torch has: the recorder as JSON
(`fr_trace_json`) in 2.13 and 2.15, NCCL's recorder in builds for CUDA.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import itertools
import os
import socket
import stat
import sys
import time
from typing import Any, Dict, Iterator, Tuple

BINDING = "torch._C._distributed_c10d"
_servers: Dict[int, Any] = {}
"""By process id, since a fork copies the dictionary but no thread."""
_YOUNG_S = 60.0
_MAX_GROUPS = 64
"""Limit of control groups to read; the kernel has some fifteen hierarchies."""
_MAX_PATH = 107
"""sun_path of unix(7) without its final zero."""


def start(directory: str) -> None:
    """Start the server of this process, unless it has one or torch does not have it."""
    pid = os.getpid()
    if pid in _servers:
        return
    _servers[pid] = None
    make = getattr(sys.modules.get(BINDING), "_WorkerServer", None)
    if make is None or not room_for_threads():
        return
    path = os.path.join(socket_directory(), socket_name(directory, pid))
    if len(os.fsencode(path)) > _MAX_PATH:
        raise OSError(errno.ENAMETOOLONG, "path of the socket is too long", path)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # from a process that had our number
    try:
        server = make(path, -1)
    except TypeError:
        server = make(path)
    os.chmod(path, 0o600)
    _servers[pid] = server
    _keep(server)
    atexit.register(_remove, path, pid)


def _keep(server: Any) -> None:
    """Never let it be destroyed: that waits for its threads, which a forked child does not have."""
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))


def _remove(path: str, pid: int) -> None:
    if os.getpid() == pid:
        with contextlib.suppress(OSError):
            os.unlink(path)
            os.rmdir(os.path.dirname(path))


def socket_name(directory: str, pid: int) -> str:
    """Return the name of the socket of a process within a run."""
    return "%s-%d.sock" % (os.path.basename(directory)[-8:], pid)


def socket_directory() -> str:
    """Create and return this user's directory of sockets: on the node itself, with a short path.

    Raise PermissionError if another user has created it.
    """
    path = "/tmp/hangtop-%d" % os.getuid()  # noqa: S108  # made and checked here
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(errno.EACCES, "is not a directory of this user alone", path)
    sweep(path)
    return path


def sweep(path: str) -> None:
    """Remove the sockets of processes that were killed: those without a listener."""
    for name, old in _entries(path):
        if old and name.endswith(".sock"):
            remove_dead(os.path.join(path, name))
        pid = name[len("debug-") : -len(".py")]
        if name == "debug-%s.py" % pid and not os.path.exists("/proc/" + pid):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(path, name))  # a request that its rank never handled


def remove_dead(path: str) -> None:
    """Remove a socket without a listener."""
    with socket.socket(socket.AF_UNIX) as end:
        end.setblocking(False)
        if end.connect_ex(path) == errno.ECONNREFUSED:
            with contextlib.suppress(OSError):
                os.unlink(path)


def _entries(path: str) -> Iterator[Tuple[str, bool]]:
    """Yield names, and whether they are so old that their maker should be listening by now."""
    with os.scandir(path) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                age = time.time() - entry.stat(follow_symlinks=False).st_mtime
                yield entry.name, age > _YOUNG_S


def room_for_threads() -> bool:
    """Return whether the control group allows the server's pool, a thread per core and at least 8.

    The server makes it in a thread of its own, where an error would end the process.
    """
    wanted = max(8, os.cpu_count() or 1) + 64
    for base in _pids_groups():
        try:
            with open(base + "/pids.max") as limit, open(base + "/pids.current") as now:
                limit_text, count = limit.read().strip(), int(now.read())
        except (OSError, ValueError):
            continue
        if limit_text.isdecimal() and int(limit_text[:18]) - count < wanted:
            return False
    return True


def _pids_groups() -> Iterator[str]:
    """Yield directories of this process's control group with limits of tasks: v2, then v1."""
    yield "/sys/fs/cgroup"
    with contextlib.suppress(OSError), open("/proc/self/cgroup", errors="replace") as file:
        for line in itertools.islice(file, _MAX_GROUPS):
            controllers, _, path = line.rstrip("\n").partition(":")[2].partition(":")
            if not controllers:
                yield "/sys/fs/cgroup" + path
            elif "pids" in controllers.split(","):
                yield "/sys/fs/cgroup/pids" + path
