"""The file that a thread is blocked in opening, making or looking at: it has no descriptor yet.

The path is an argument of its system call, so it is read from the process's memory
(/proc/PID/mem, proc(5)), which stops nothing. That takes the lock of its memory, which a page fault
on a dead file server may hold: so it is read through a guard. The file system is not touched.
"""

from __future__ import annotations

import os
from typing import Any, Dict, Iterable, Optional

from ..proc import procfs, syscalls
from ..secrets import mask
from ..wire.guard import Guard, Hanging

_FIRST = """
    open stat lstat access readlink mkdir rmdir unlink rename truncate chdir execve statfs creat
    utime chmod chown
"""
_SECOND = """
    openat openat2 newfstatat statx faccessat faccessat2 readlinkat mkdirat unlinkat renameat
    renameat2 fchmodat execveat name_to_handle_at
"""
_PATH_FIRST, _PATH_SECOND = frozenset(_FIRST.split()), frozenset(_SECOND.split())
"""System calls by which of their arguments is a path."""
_AT_FDCWD = 0xFFFFFF9C
_PAGE = 4096
_MOST = 512
"""Threads that are looked at."""
_GUARD = Guard(4)


def read(pid: int, mounts: Iterable[procfs.Mount]) -> Optional[Dict[str, Any]]:
    """Return what a thread waits for, as model.Descriptor has it; None if for no path.

    A main thread that sleeps on a futex may wait for another thread, which is looked at then.
    """
    main = procfs.parse_syscall(procfs.read("/proc/%d/syscall" % pid, 512) or b"")
    if main is None:
        return None
    tids = [pid]
    if syscalls.name(main.number) == "futex":
        tids = procfs.numbers("/proc/%d/task" % pid)[:_MOST]
    return next((row for tid in tids for row in [_of_thread(pid, tid, mounts)] if row), None)


def _of_thread(pid: int, tid: int, mounts: Iterable[procfs.Mount]) -> Optional[Dict[str, Any]]:
    file = "/proc/%d/task/%d/syscall" % (pid, tid)
    line = procfs.read(file, 512) or b""
    call = procfs.parse_syscall(line)
    if call is None:
        return None
    name = syscalls.name(call.number)
    if name not in _PATH_FIRST and name not in _PATH_SECOND:
        return None
    address = call.args[0 if name in _PATH_FIRST else 1]
    try:
        raw = _GUARD.call(lambda: _text_at(pid, address))
    except (Hanging, OSError, OverflowError):  # the last where it is no address at all
        return None
    if not raw or procfs.read(file, 512) != line:
        return None
    path = procfs.text(raw)
    if not path.startswith("/"):
        base = "cwd" if name in _PATH_FIRST else _base(call.args[0])
        folder = procfs.link("/proc/%d/%s" % (pid, base))
        path = os.path.join(folder, path) if folder else path
    path = os.path.normpath(path)
    row: Dict[str, Any] = {"fd": -1, "kind": "file", "target": mask.mask_path(path)}
    mount = procfs.mount_of(path, mounts)
    if mount is not None:
        row.update(mount=mount.point, fstype=mount.fstype, source=mount.source)
    return row


def _base(argument: int) -> str:
    number = argument & 0xFFFFFFFF
    return "cwd" if number == _AT_FDCWD else "fd/%d" % number


def _text_at(pid: int, address: int) -> bytes:
    """Return the text at an address up to its end, by pages: what follows may not be there."""
    found = b""
    with open("/proc/%d/mem" % pid, "rb", buffering=0) as memory:
        while len(found) < _PAGE:
            memory.seek(address + len(found))
            part = memory.read(_PAGE - (address + len(found)) % _PAGE)
            if not part:
                break
            found += part
            if b"\0" in part:
                break
    return found.split(b"\0", 1)[0][:_PAGE]
