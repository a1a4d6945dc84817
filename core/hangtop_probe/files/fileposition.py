"""Read the position of a rank in the file that its main thread reads or writes.

The position is the kernel's (/proc/PID/fdinfo/FD), so that no file system is touched; only the size
is asked of it, once for each file, through a guard. pread and pwrite do not move it, nor does
mapped memory: files read in that way have no known position.
"""

from __future__ import annotations

import os
import stat as stat_module
from typing import TYPE_CHECKING, Any, Dict, Optional, Tuple

from ..proc import procfs
from ..secrets import mask
from ..wire.guard import Guard, Hanging
from . import filesystems

if TYPE_CHECKING:
    from ..proc.activity import ThreadRow

_READS, _WRITES = ("read", "readv"), ("write", "writev")
_OTHERWISE = ("pread64", "preadv", "preadv2", "pwrite64", "pwritev", "pwritev2")
_NO_FILES = ("/dev/", "/proc/", "/sys/", "/memfd:")
_ASKED_S = 0.2


class Position:
    """The last file that the main thread of a process was seen to read or write."""

    def __init__(self, pid: int, guard: Guard) -> None:
        self._pid = str(pid)
        self._base = "/proc/%d/" % pid
        self._guard = guard
        self._file: Optional[Dict[str, Any]] = None
        self._none: Tuple[int, str] = (-1, "")
        """Stands for a descriptor that leads to no file."""

    def look(self, main: Optional[ThreadRow], limit: int = 3) -> Optional[Dict[str, Any]]:
        """Return the file in the form of hangtop_core.model.descriptors.FilePosition, or None.

        Args:
            main: the main thread.
            limit: descriptors below it, standard input and outputs, are left out.
        """
        if main is not None and main.fd is not None and main.fd >= limit:
            if main.syscall in _READS + _WRITES:
                self._follow(main.fd, main.syscall in _WRITES)
            elif main.syscall in _OTHERWISE and self._file and self._file["fd"] == main.fd:
                self._file = None
        if self._file is None:
            return None
        info = self._info(self._file["fd"])
        position = procfs.value_of(info, b"pos")
        if position is None or procfs.value_of(info, b"mnt_id") != self._file["mnt_id"]:
            self._file = None
            return None
        self._file["position"] = position
        return {name: value for name, value in self._file.items() if name not in ("mnt_id", "link")}

    def _follow(self, fd: int, writes: bool) -> None:
        link = procfs.link("%sfd/%d" % (self._base, fd)) or ""
        old = self._file
        if old is not None and (old["fd"], old["link"]) == (fd, link):
            old["writes"] = old["writes"] or writes
            return
        if (fd, link) == self._none:
            return
        self._file = None
        size = self._size(fd) if link.startswith("/") and not link.startswith(_NO_FILES) else None
        mount = procfs.value_of(self._info(fd), b"mnt_id")
        if size is None or mount is None:
            self._none = fd, link
            return
        self._file = {"fd": fd, "link": link, "target": mask.mask_path(link), "writes": writes}
        self._file.update(mnt_id=mount, size=None if size < 0 else size)
        self._file.update(self._place(mount))

    def _info(self, fd: int) -> bytes:
        return procfs.read("%sfdinfo/%d" % (self._base, fd), 4096) or b""

    def _size(self, fd: int) -> Optional[int]:
        """Return the size in bytes, -1 where the file system does not answer, None for no file."""
        try:
            status = self._guard.call(lambda: os.stat("%sfd/%d" % (self._base, fd)), _ASKED_S)
        except Hanging:
            return -1
        except OSError:
            return None
        return status.st_size if stat_module.S_ISREG(status.st_mode) else None

    def _place(self, mount_id: int) -> Dict[str, Any]:
        for mount in procfs.mounts(self._pid):
            if mount.id == mount_id:
                far = filesystems.is_network(mount.fstype)
                server = filesystems.server_name(mount.source) if far else None
                return {"mount": mount.point, "fstype": mount.fstype, "server": server}
        return {}
