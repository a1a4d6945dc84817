"""Find what a process may wait for without having it open: lock files, the port of its store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, List, Optional, TypeVar

from ..proc import procfs
from ..secrets import mask
from ..table import facts
from ..wire.guard import Guard, Hanging

if TYPE_CHECKING:
    from ..wire.requests import Message
    from .nodewide import Node

MAX_FILES = 8
MAX_DESCRIPTORS = 4096
"""Descriptors of one of them."""
MAX_HOLDERS = 64
"""Most processes with locks whose descriptors are searched."""
LOCK_FILES = (".lock", "/lock")
"""Endings of lock files: filelock, huggingface, torch's extensions, Triton."""

HOLDS = "holds the lock"
INTERPRETERS = ("python", "pt_main", "bash", "sh", "perl", "ruby", "java", "node")
"""Prefixes of process names for which the command line is shown: torch renames Python."""
T = TypeVar("T")
_GUARD = Guard(4)


def _of_memory(read: Callable[[], Optional[T]]) -> Optional[T]:
    """Return a reading that takes the memory lock of a process, or None where that is held."""
    try:
        return _GUARD.call(read)
    except Hanging:
        return None


def holder(pid: int, how: str) -> Optional[Message]:
    """Return a process in the form of model.Holder; None when it is gone."""
    stat = procfs.read_stat(pid)
    if stat is None:
        return None
    name = stat.comm
    if how == HOLDS and name.startswith(INTERPRETERS):
        told = _of_memory(lambda: procfs.read("/proc/%d/cmdline" % pid, 4096))
        words = procfs.parse_cmdline(told or b"")
        name = " ".join((name, *mask.mask_arguments(words)[1:]))[:80]
    return {"pid": pid, "comm": name, "state": stat.state, "how": how}


def lock_files(pid: int, around: Node) -> List[Message]:
    """Return lock files that other processes of the same user have locked.

    A process that tries a lock again and again (filelock, by flock with LOCK_NB) is never in
    /proc/locks, and has the file open for an instant each time.
    """
    held = {
        lock.pid for lock in around.locks() if not lock.waiting and lock.pid not in (0, -1, pid)
    }
    mine = facts.uid_of(pid)
    found: List[Message] = []
    for other in sorted(held)[:MAX_HOLDERS]:
        if mine < 0 or facts.uid_of(other) != mine:
            continue
        for fd in procfs.numbers("/proc/%d/fd/" % other)[:MAX_DESCRIPTORS]:
            target = procfs.link("/proc/%d/fd/%d" % (other, fd)) or ""
            if not target.endswith(LOCK_FILES):
                continue
            # `lock:` stands there for what was locked through this very descriptor.
            if b"\nlock:" not in (procfs.read("/proc/%d/fdinfo/%d" % (other, fd)) or b""):
                continue
            entry = holder(other, HOLDS)
            if entry is not None:
                path = mask.mask_path(target)
                row: Message = {"fd": -1, "kind": "file", "target": path, "locked": "held"}
                found.append(dict(row, holders=[entry]))
    return found[:MAX_FILES]


def store_port(pid: int, around: Node) -> Optional[Message]:
    """Return the process that listens on the store's port, MASTER_PORT, in the same network."""
    environ = _of_memory(lambda: procfs.environ(pid)) or {}
    port = environ.get("MASTER_PORT", "")
    if not port.isdigit():
        return None
    for entry in around.sockets(pid).by_inode.values():
        if entry.family != "tcp" or entry.state != "LISTEN":
            continue
        if not entry.local.endswith(":" + port):
            continue
        target = "socket:[%d]" % entry.inode
        owners = sorted({owner.pid for owner in around.owners(target)})
        holders = [one for one in (holder(pid, "listens") for pid in owners) if one is not None]
        told: Message = dict(entry._asdict())
        del told["inode"]
        row: Message = {"fd": -1, "kind": "socket", "target": target, "mode": "rw", "socket": told}
        return dict(row, holders=holders[:MAX_FILES])
    return None
