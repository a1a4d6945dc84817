"""Read open files, sockets, pipes and locks of a process, and the processes at their other end.

No file is ever looked up by path: a path on a file system with a dead server hangs the reader.
Descriptors are read from /proc/PID/fd and fdinfo; fstat is used only on local file systems, by the
mount id in fdinfo.
"""

from __future__ import annotations

import os
import stat as stat_module
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple

from ..files import fileservers, filesystems, opening
from ..net import flows
from ..net.sockets import inode_of
from ..node import permission
from ..proc import procfs
from ..secrets import mask
from ..wire.requests import Message, Request, clock, failure, pids_of
from . import locks
from .beside import HOLDS, holder, lock_files, store_port
from .nodewide import Node
from .owners import Owner

_TERMINALS = ("/dev/pts/", "/dev/tty", "/dev/console")
MAX_DESCRIPTORS = 4096
MAX_HOLDERS = 16
_MODES = {os.O_RDONLY: "r", os.O_WRONLY: "w", os.O_RDWR: "rw"}


class Info(NamedTuple):
    """The fields of /proc/PID/fdinfo/FD."""

    mode: str
    position: Optional[int]
    mount: Optional[int]
    inode: Optional[int]
    """None before Linux 5.14."""
    directory: bool
    locks: List[locks.Lock]


def parse_info(data: bytes) -> Info:
    """Parse /proc/PID/fdinfo/FD."""
    pairs = procfs.parse_pairs(data)
    try:
        flags = int(pairs.get("flags", ""), 8)
    except ValueError:
        return Info("?", None, None, None, False, [])
    numbers = [procfs.parse_int(pairs.get(name)) for name in ("pos", "mnt_id", "ino")]
    held = [line for line in data.split(b"\n") if line.startswith(b"lock:")]
    return Info(
        "?" if flags & os.O_PATH else _MODES.get(flags & os.O_ACCMODE, "?"),
        numbers[0],
        numbers[1],
        numbers[2],
        bool(flags & os.O_DIRECTORY),
        locks.parse_locks(b"\n".join(held)),
    )


def info_of(pid: int, fd: int) -> Info:
    """Return the fields of a descriptor, empty if it is closed or not readable."""
    return parse_info(procfs.read("/proc/%d/fdinfo/%d" % (pid, fd)) or b"")


class Reader:
    """Reads the descriptors of one process."""

    def __init__(self, pid: int, around: Node) -> None:
        self.pid = pid
        self.around = around
        self.mounts = {mount.id: mount for mount in procfs.mounts(str(pid))}
        self.waits = {
            lock.file: lock for lock in around.locks() if lock.waiting and lock.pid == pid
        }
        self.others = {
            lock.file: lock
            for lock in around.locks()
            if lock.exclusive and not lock.waiting and lock.pid not in (-1, pid)
        }

    def table(self) -> Tuple[List[Message], List[Message]]:
        """Return all descriptors, and of these the files whose lock is waited for.

        Raise OSError where they must not be read.
        """
        names = os.listdir("/proc/%d/fd" % self.pid)
        rows = []
        for fd in sorted(int(name) for name in names)[:MAX_DESCRIPTORS]:
            row = self.descriptor(fd)
            if row is not None:
                rows.append(row)
        waiting = [row for row in rows if row.get("locked") == "waiting"]
        for key, lock in self.waits.items():
            if not any(row.get("key") == key for row in waiting):
                waiting.append(self._unopened(lock))
        for row in rows + waiting:
            row.pop("key", None)
        self._note_answers(rows)
        return rows, waiting

    def _note_answers(self, rows: List[Message]) -> None:
        """Say of who called at a port of its own whether it has been answered."""
        some = [(row["target"], row["socket"]) for row in rows if row.get("socket")]
        tcp = [(inode_of(target) or 0, one) for target, one in some if one["family"] == "tcp"]
        ports = {one["local"].rsplit(":", 1)[1] for _, one in tcp if one["state"] == "LISTEN"}
        called = {
            inode: one
            for inode, one in tcp
            if one["state"] == "ESTABLISHED" and one["local"].rsplit(":", 1)[1] in ports
        }
        for inode in flows.answered(self.pid, set(called)):
            called[inode]["answered"] = True

    def opening(self) -> Optional[Message]:
        """Return the file that the main thread is blocked in opening or examining."""
        row = opening.read(self.pid, self.mounts.values())
        source = row.pop("source", None) if row is not None else None
        if row is not None and source is not None and filesystems.is_network(row["fstype"]):
            row["server"] = filesystems.server_name(source)
        return row

    def descriptor(self, fd: int) -> Optional[Message]:
        """Return one descriptor in the form of model.Descriptor; None when it was closed."""
        target = procfs.link("/proc/%d/fd/%d" % (self.pid, fd))
        if target is None:
            return None
        info = info_of(self.pid, fd)
        row: Message = {
            "fd": fd,
            "target": mask.mask_path(target),
            "mode": info.mode,
            "kind": "other",
        }
        if target.startswith("socket:["):
            row["kind"] = "socket"
            self._add_socket(row, target)
        elif target.startswith("pipe:["):
            row["kind"] = "pipe"
            self._add_other_ends(row, target, info)
        elif target.startswith("anon_inode:"):
            row["kind"] = "anon"
            if "eventpoll" in target:
                row["watches"] = [one for one, _ in flows.watched("/proc/%d/" % self.pid, fd)]
        elif target.startswith("/"):
            self._add_file(row, fd, target, info)
        return row

    def _add_file(self, row: Message, fd: int, target: str, info: Info) -> None:
        mount = self.mounts.get(info.mount) if info.mount is not None else None
        row["position"] = info.position
        row["kind"] = "directory" if info.directory else "file"
        if mount is not None:
            row.update(mount=mount.point, fstype=mount.fstype)
            if filesystems.is_network(mount.fstype):
                row["server"] = filesystems.server_name(mount.source)
            else:
                self._add_status(row, fd)
                if "w" in info.mode:
                    row["full"] = filesystems.full("/proc/%d/fd/%d" % (self.pid, fd))
            if info.inode is not None:
                self._add_lock(row, (mount.device, info.inode), info)
        elif target.startswith(("/memfd:", *_TERMINALS)):
            # A terminal that was opened outside of the container, as by docker exec -it, is on none
            # of the mounts that the process sees.
            self._add_status(row, fd)
        if row["kind"] == "fifo":
            self._add_other_ends(row, target, info)

    def _add_status(self, row: Message, fd: int) -> None:
        try:
            status = os.stat("/proc/%d/fd/%d" % (self.pid, fd))
        except OSError:
            return
        mode = status.st_mode
        terminal = row["target"].startswith(_TERMINALS)
        if stat_module.S_ISFIFO(mode):
            row["kind"] = "fifo"
        elif stat_module.S_ISCHR(mode) or stat_module.S_ISBLK(mode):
            row["kind"] = "tty" if terminal else "device"
        elif stat_module.S_ISREG(mode):
            row["size"] = status.st_size
        if row["kind"] != "file":
            row["position"] = None

    def _add_lock(self, row: Message, key: locks.FileKey, info: Info) -> None:
        row["key"] = key
        if key in self.waits:
            row["locked"] = "waiting"
            row["holders"] = self._lock_holders(self.waits[key])
        elif key in self.others and not any(lock.exclusive for lock in info.locks):
            row["locked"] = "by others"
            row["holders"] = self._lock_holders(self.others[key])
        elif any(not lock.waiting for lock in info.locks):
            row["locked"] = "held"

    def _lock_holders(self, wait: locks.Lock) -> List[Message]:
        pids = set(locks.holders(self.around.locks()).get(wait.number, []))
        found = [holder(pid, HOLDS) for pid in sorted(pids) if pid > 0]
        return [h for h in found if h is not None][:MAX_HOLDERS]

    def _unopened(self, lock: locks.Lock) -> Message:
        target = "inode %d on device %s" % (lock.file[1], lock.file[0])
        held_by = self._lock_holders(lock)
        return {"fd": -1, "kind": "file", "target": target, "locked": "waiting", "holders": held_by}

    def _add_other_ends(self, row: Message, target: str, info: Info) -> None:
        """Return the processes at the other end: writers of an input, readers of an output."""
        seen, found = set(), []
        for owner in self.around.owners(target, Owner(self.pid, row["fd"])):
            mode = info_of(owner.pid, owner.fd).mode
            same_descriptor = owner == (self.pid, row["fd"])
            opposite = mode == "rw" or info.mode in ("rw", "?") or mode != info.mode
            how = {"r": "reads", "w": "writes", "rw": "reads and writes"}.get(mode)
            if same_descriptor or not opposite or how is None or (owner.pid, how) in seen:
                continue
            seen.add((owner.pid, how))
            entry = holder(owner.pid, how)
            if entry is not None:
                found.append(entry)
        row["holders"] = found[:MAX_HOLDERS]

    def _add_socket(self, row: Message, target: str) -> None:
        sockets = self.around.sockets(self.pid)
        entry = sockets.by_inode.get(inode_of(target) or -1)
        if entry is None:
            return
        row["mode"] = "rw"
        described: Message = dict(entry._asdict(), peer_pid=None, peer_name=None)
        del described["inode"]
        peer = sockets.peer(entry)
        if peer is not None:
            described.update(self._peer(self.around.owners("socket:[%d]" % peer)))
        row["socket"] = described

    def _peer(self, owners: Iterable[Owner]) -> Message:
        """Return the oldest process with a socket as the peer, since forked children inherit it."""
        stats = [procfs.read_stat(pid) for pid in {owner.pid for owner in owners}]
        live = sorted((s for s in stats if s is not None), key=lambda s: (s.start, s.pid))
        return {"peer_pid": live[0].pid, "peer_name": live[0].comm} if live else {}


def handle(request: Request, rights: permission.Rights) -> Message:
    """Answer `descriptors`: a piece per process."""
    around = Node()
    pids = pids_of(request.message)
    for pid in pids:
        piece = describe(pid, around, rights)
        request.give(piece)
    return {"pids": len(pids)}


def describe(pid: int, around: Node, rights: permission.Rights) -> Dict[str, Any]:
    """Return the piece for one process: its descriptors or the failure."""
    stat = procfs.read_stat(pid)
    piece: Message = {"pid": pid, "start": stat.start if stat else None, "at": clock()}
    try:
        reader = Reader(pid, around)
        piece["descriptors"], piece["waiting_locks"] = reader.table()
        piece["opening"] = reader.opening()
        piece["lock_files"] = lock_files(pid, around)
        piece["store_port"] = store_port(pid, around)
        piece["servers"] = fileservers.read(reader.mounts.values())
    except OSError:
        if stat is None or stat.state == "Z":
            piece["failure"] = failure("gone", "the process is gone")
        else:
            piece["failure"] = failure("denied", *permission.why_denied(pid, rights))
    return piece
