"""Finds and kills the processes of a demo by the marker in their environment."""

from __future__ import annotations

import contextlib
import os
import time

import psutil

MARKER = "HANGTOP_DEMO"


def marked(token: str) -> list[psutil.Process]:
    """Return all processes that carry `HANGTOP_DEMO=token`, except this one.

    A zombie has no environment any more and is not listed.
    """
    return [
        process
        for process in psutil.process_iter(["environ"])
        if (process.info["environ"] or {}).get(MARKER) == token and process.pid != os.getpid()
    ]


def kill_marked(token: str, limit_s: float = 10.0) -> list[int]:
    """Kill every process of a demo, including stopped and orphaned ones.

    Returns the pids that are still there after `limit_s` seconds, normally none. SIGKILL also ends
    stopped and traced processes; a process in uninterruptible sleep ends when the child it waits
    for has exited. psutil does not kill a process that got the pid of one it listed.
    """
    end = time.monotonic() + limit_s
    killed: set[psutil.Process] = set()
    while True:
        for process in marked(token):
            killed.add(process)
            with contextlib.suppress(psutil.Error):
                process.kill()
        # An exiting process has no environment any more, but still holds its memory.
        left = [process.pid for process in killed if _is_alive(process)]
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.05)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
