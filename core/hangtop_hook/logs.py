"""A log of its own for every rank, also copied to its former output with labels `node:rank`.

The rank writes to a file, which neither a slow terminal nor the end of a reader can block; a
process beside it (`tee.py`) copies new lines to where standard output and error pointed. Where both
pointed to one place, one file keeps their order. An output that already is a file of this rank
alone, as with torchrun's --redirects, stays as it is.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import select
import stat
import sys
from typing import Dict, List, Tuple

from . import processes

_TEE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tee.py")
_ROOM = 64 << 20
"""Bytes that must be free for logs: on a full disk a rank could not even print why it ends."""
_WAIT_S = 1.0
"""Seconds that a rank waits at its end for the last lines to be copied."""
_KEPT = ("PATH", "LD_LIBRARY_PATH", "PYTHONHOME")
"""The only variables that the process beside the rank inherits: with RANK it would look like a
rank.
"""

Streams = List[Tuple[int, str]]
"""Descriptor, 1 or 2, and the file that replaces it."""


def redirect(directory: str, number: int) -> None:
    """Let this process write to its file, where the run wants logs.

    Raise OSError, and leave everything as it is, if that is impossible.
    """
    logs = os.path.join(directory, "logs")
    if not os.path.isdir(logs):
        return
    if free(logs) < _ROOM:
        raise OSError(errno.ENOSPC, "hardly any space left, so output stays where it goes", logs)
    node = os.uname().nodename.split(".")[0]
    streams = choose(os.path.join(logs, "rank%d-%s%s" % (number, node, _attempt())))
    if not streams:
        return
    _flush()
    files = {fd: _open(path) for fd, path in streams}
    try:
        if any(_has_reader(fd) for fd, _ in streams):
            _start_tee("[%s:%d]:" % (node, number), files)
        for fd, file in files.items():
            os.dup2(file, fd)
            if fd == 1 and len(files) == 1:
                os.dup2(file, 2)
    finally:
        for file in files.values():
            os.close(file)


def free(path: str) -> int:
    """Return how many bytes this user can still write there; quotas do not show."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def choose(stem: str) -> Streams:
    """Return which of descriptors 1 and 2 get files; one entry, for 1, stands for both."""
    statuses = {}
    for fd in (1, 2):
        with contextlib.suppress(OSError):
            statuses[fd] = os.fstat(fd)
    ours = [
        fd for fd, status in statuses.items() if not stat.S_ISREG(status.st_mode) or _is_shared(fd)
    ]
    if len(ours) == 2 and os.path.sameopenfile(1, 2):
        return [(1, stem + ".log")]
    return [(fd, stem + (".out" if fd == 1 else ".err")) for fd in ours]


def _is_shared(fd: int) -> bool:
    """Return whether the parent writes there, too: then it is no file made for this rank alone."""
    try:
        return os.path.samestat(os.stat("/proc/%d/fd/%d" % (os.getppid(), fd)), os.fstat(fd))
    except OSError:
        return False


def _attempt() -> str:
    count = processes.count_in("TORCHELASTIC_RESTART_COUNT")
    return "-attempt%d" % count if count else ""


def _open(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def _has_reader(fd: int) -> bool:
    """Return whether output there has a reader: it is not /dev/null."""
    return not stat.S_ISCHR(os.fstat(fd).st_mode) or os.isatty(fd)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _start_tee(label: str, files: Dict[int, int]) -> None:
    """Start the process beside the rank, whose own 1 and 2 are what this process's were.

    A shell starts it and exits: it is no child of this process, which may wait for its own.
    """
    alive, closed = os.pipe()
    answer, done = os.pipe()
    numbers = {"end": 3, "done": 4}
    command = [sys.executable, "-S", "-s", _TEE, label, str(os.getpid())]
    actions = [
        (os.POSIX_SPAWN_DUP2, alive, 20),
        (os.POSIX_SPAWN_DUP2, done, 21),
        (os.POSIX_SPAWN_DUP2, 20, numbers["end"]),
        (os.POSIX_SPAWN_DUP2, 21, numbers["done"]),
        (os.POSIX_SPAWN_CLOSE, 20),
        (os.POSIX_SPAWN_CLOSE, 21),
    ]
    for fd, file in files.items():
        path = "/proc/self/fd/%d" % file
        command += [str(fd), os.readlink(path), str(os.fstat(file).st_size)]
    environ = {name: os.environ[name] for name in _KEPT if name in os.environ}
    shell = ["/bin/sh", "-c", '"$@" </dev/null &', "sh", *command]
    pid = os.posix_spawn(shell[0], shell, environ, file_actions=actions, setsid=True)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
    os.close(alive)
    os.close(done)
    atexit.register(_hand_over, os.getpid(), closed, answer)


def _hand_over(pid: int, closed: int, answer: int) -> None:
    """Wait until the last lines are copied, since a launcher may end all when this process ends."""
    if os.getpid() != pid:
        return
    _flush()
    with contextlib.suppress(OSError):
        os.write(closed, b".")
        select.select([answer], [], [], _WAIT_S)
