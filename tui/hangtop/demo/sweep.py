"""Find and kill the processes of a demo by the marker in their environment."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

MARKER = "HANGTOP_DEMO"


def marked(token: str) -> list[int]:
    """Pids of all processes that carry `HANGTOP_DEMO=token`, except this one.

    A zombie has no environment any more and is not listed.
    """
    wanted = f"{MARKER}={token}".encode()
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    pids.append(int(entry.name))
    return pids


def kill_marked(token: str, limit_s: float = 10.0) -> list[int]:
    """Kill every process of a demo, stopped and orphaned ones too.

    Returns the pids that are still there after `limit_s` seconds, normally none. SIGKILL also
    ends stopped and traced processes; a process in uninterruptible sleep goes when the child it
    waits for has gone.
    """
    end = time.monotonic() + limit_s
    while (left := marked(token)) and time.monotonic() < end:
        for pid in left:
            kill_if_marked(pid, token)
        time.sleep(0.05)
    return left


def kill_if_marked(pid: int, token: str) -> None:
    """Kill a process, unless its pid has come to belong to another one meanwhile."""
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(pid)
        try:
            if f"{MARKER}={token}".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)
