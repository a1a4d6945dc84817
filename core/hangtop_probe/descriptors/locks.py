"""Read file locks with holders and waiters from /proc/locks (fs/locks.c of Linux)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, List, NamedTuple, Tuple

from ..proc import procfs

if TYPE_CHECKING:
    FileKey = Tuple[str, int]
    """`major:minor` in decimal as mountinfo has it, and the inode number."""


class Lock(NamedTuple):
    """One line of /proc/locks."""

    number: int
    """Lines with the same number are one lock and its waiters."""
    waiting: bool
    kind: str
    """FLOCK, POSIX, OFDLCK, LEASE."""
    pid: int
    """-1 for open-file-description locks, 0 for a process of another namespace."""
    file: FileKey
    exclusive: bool = True
    """WRITE, and not READ, which several may have at a time."""


def parse_locks(data: bytes) -> List[Lock]:
    """Parse /proc/locks, or the lines after `lock:` of /proc/PID/fdinfo/FD."""
    found = []
    for line in data.split(b"\n"):
        fields = line.replace(b"lock:", b"").split()
        waiting = len(fields) > 1 and fields[1] == b"->"
        if waiting:
            del fields[1]
        try:
            major, minor, inode = fields[5].split(b":")
            device = "%d:%d" % (int(major, 16), int(minor, 16))
            key = (device, int(inode))
            number, pid = int(fields[0].rstrip(b":")), int(fields[4])
        except (IndexError, ValueError):
            continue
        found.append(Lock(number, waiting, procfs.text(fields[1]), pid, key, fields[3] == b"WRITE"))
    return found


def read_locks() -> List[Lock]:
    """Return all file locks of the node."""
    return parse_locks(procfs.read_all("/proc/locks") or b"")


def holders(locks: List[Lock]) -> Dict[int, List[int]]:
    """Return, by lock number, the pids that hold it."""
    found: Dict[int, List[int]] = {}
    for lock in locks:
        if not lock.waiting:
            found.setdefault(lock.number, []).append(lock.pid)
    return found
