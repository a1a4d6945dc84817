"""Read lines of the kernel log that explain why a rank died or waits.

Read from /dev/kmsg (Documentation/ABI/testing/dev-kmsg of Linux): one record per read, never
blocking, and nothing is taken from other readers. Only lines that can matter are kept.
"""

from __future__ import annotations

import errno
import os
import re
import time
from typing import Any, Dict, List, Optional, Tuple

from ..proc import procfs
from ..secrets import mask
from ..wire import fixes

PATH = "/dev/kmsg"
MAX_LINES = 64
"""Most lines kept, the newest."""
MAX_TEXT = 300
_RECORD = 8192
"""The longest record, PRINTK_MESSAGE_MAX of kernel/printk/printk.c is smaller."""
_MOST = 200000
"""Most records read at a time: more than any log buffer holds."""
_SECONDS = 0.2
"""Time limit of one reading; the next one continues."""

_TELLING = re.compile(
    rb"Killed process|oom-kill:|segfault at|general protection|traps: |unhandled (?:page )?fault"
    rb"|NVRM: |nvidia-nvswitch|SXid|blocked for more than|soft lockup|hard LOCKUP|rcu.*stall"
    rb"|nfs: server|NFS: |Lustre|I/O error|EXT4-fs error|XFS \(.*(?:error|[Ss]hutdown|[Cc]orrupt)"
    rb"|Remounting filesystem read-only|No space left|nvme.*timeout|Hardware Error|EDAC .* UE"
    rb"|[Ll]ink (?:is )?[Dd]own|mlx5_core.*(?:health|fatal|error|internal)|hfi1.*(?:error|freeze)"
)


class KernelLog:
    """The newest relevant lines of the kernel log."""

    def __init__(self, path: str = PATH) -> None:
        self.lines: List[Tuple[float, str]] = []
        """Time in seconds since the epoch, and text; oldest first."""
        self._path = path
        self._file: Optional[int] = None
        self._refused = False

    def read(self) -> List[Tuple[float, str]]:
        """Read new records; return all kept lines."""
        if self._file is None and not self._refused:
            try:
                self._file = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError:
                self._refused = True
        found = self._new()
        if found:
            self.lines = (self.lines + found)[-MAX_LINES:]
        return self.lines

    def close(self) -> None:
        """Close the log; reading goes on from the beginning afterwards."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    __del__ = close

    def _new(self) -> List[Tuple[float, str]]:
        found: List[Tuple[float, str]] = []
        until = time.monotonic() + _SECONDS
        began = time.time() - time.monotonic()
        for number in range(_MOST if self._file is not None else 0):
            if number % 256 == 255 and time.monotonic() > until:
                break
            try:
                record = os.read(self._file or 0, _RECORD)
            except OSError as error:
                if error.errno == errno.EPIPE:
                    continue  # overwritten before it was read: the next one is the oldest left
                break
            if not record:
                break
            if _TELLING.search(record):
                line = parse(record, began)
                found.extend([line] if line is not None else [])
        return found


_MAX_SINCE = 1 << 63
"""Most microseconds; higher values are no times of a kernel."""


def parse(record: bytes, began: float) -> Optional[Tuple[float, str]]:
    """Return time and text of a record `priority,number,microseconds,flags;text`.

    ``began`` is when the machine's monotonic clock stood at 0, in seconds since the epoch.
    """
    head, semicolon, body = record.partition(b";")
    fields = head.split(b",")
    if not semicolon or len(fields) < 3:
        return None
    since = procfs.number(fields[2])
    if since is None or since > _MAX_SINCE:
        return None
    text = mask.mask_text(procfs.text(body.split(b"\n", 1)[0])[:MAX_TEXT])
    return round(began + since / 1e6, 2), text


def fact(path: str = PATH) -> Dict[str, Any]:
    """Say whether the kernel log can be read, as a capability."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        if error.errno == errno.ENOENT:
            return {"ok": False, "why": "there is no %s here, as in most containers" % path}
        why = "%s: %s" % (path, os.strerror(error.errno or 0))
        if procfs.parse_int(procfs.text(procfs.read("/proc/sys/kernel/dmesg_restrict") or b"")):
            why += " (kernel.dmesg_restrict is 1)"
        return {"ok": False, "why": why, "fix": fixes.DMESG}
    return {"ok": True}
