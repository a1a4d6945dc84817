"""Read exit statuses of processes whose parent has collected them already (Linux 6.15).

The kernel keeps a status as long as a pidfd of the process is open, which does not touch the
process. On an older kernel, or before Python 3.9, no pidfds are held and no status is known.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from typing import Any, Dict, Mapping, Optional, Tuple

from ..proc import procfs

_INFO = struct.Struct("=Q52xi")
"""struct pidfd_info, include/uapi/linux/pidfd.h: its mask, and the exit status."""
_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11
_EXIT = 1 << 3
_ROLES = ("rank", "launcher")
MAX_HELD = 256
"""Largest number of pidfds held: each takes a descriptor of the probe."""


class Exits:
    """Pidfds of ranks and launchers, held until the processes have exited."""

    def __init__(self) -> None:
        self._held: Dict[int, int] = {}
        """Pidfds, by pid."""
        self._open = getattr(os, "pidfd_open", None)

    def follow(self, processes: Mapping[int, Mapping[str, Any]]) -> None:
        """Open pidfds of ranks and launchers, given fields of `model.Process` by pid."""
        for pid, fields in processes.items():
            is_new = pid not in self._held and fields["role"] in _ROLES
            if is_new and self._open is not None and len(self._held) < MAX_HELD:
                with contextlib.suppress(OSError):
                    self._hold(pid, fields["start"], self._open(pid))

    def _hold(self, pid: int, start: int, fd: int) -> None:
        stat = procfs.read_stat(pid)
        if stat is not None and stat.start == start and _info(fd) is not None:
            self._held[pid] = fd
        else:
            os.close(fd)

    def status(self, pid: int) -> Optional[int]:
        """Return the exit code of an exited process, negative for a signal, and close its pidfd."""
        fd = self._held.pop(pid, None)
        if fd is None:
            return None
        mask, status = _info(fd) or (0, 0)
        os.close(fd)
        return procfs.wait_status(status) if mask & _EXIT else None


def _info(fd: int) -> Optional[Tuple[int, int]]:
    """Return mask and exit status, or None where the kernel does not answer for the process."""
    try:
        told = fcntl.ioctl(fd, _GET_INFO, _INFO.pack(_EXIT, 0))
    except OSError:
        return None
    mask, status = _INFO.unpack(told)
    return mask, status
