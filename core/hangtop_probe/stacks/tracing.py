"""Whether a tracer may come to a process, and whether that runs again afterwards.

An attach to a process with a thread that is stopped, traced or waiting for a disk hangs, and may
leave it stopped for good when it is given up.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Dict, NamedTuple, Optional

from ..node import permission
from ..proc import procfs
from ..wire import fixes
from ..wire.requests import Message, Refused, Request, failure


class Halted(NamedTuple):
    """Which threads of a process were stopped, traced or waiting for a disk."""

    stopped: bool
    busy: bool


MAX_PAUSE_S = 3.0
"""Seconds for which a process may be stopped to take its stacks."""


class Pause:
    """For how long a process has been stopped, as far as it was looked at."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._since: Optional[float] = None

    def is_too_long(self) -> bool:
        """Look once more; its main thread is stopped first."""
        stat = procfs.read_stat(self._pid)
        if stat is None or stat.state not in ("t", "T"):
            self._since = None
            return False
        now = time.monotonic()
        if self._since is None:
            self._since = now
        return now - self._since > MAX_PAUSE_S


def halted(states: Dict[int, str]) -> Halted:
    """Look at thread states: `T` and `t` are stopped, `D` cannot be interrupted."""
    letters = set(states.values())
    return Halted(bool(letters & {"T", "t"}), bool(letters & {"D", "T", "t"}))


def target_of(request: Request, rights: permission.Rights) -> int:
    """Return the process a request names; raise `Refused` where no tracer may come to it."""
    pid = request.message.get("pid")
    if not isinstance(pid, int) or pid <= 0:
        raise Refused("error", "%s needs a `pid`" % request.op)
    states = procfs.states(pid)
    if not states or set(states.values()) <= {"Z", "X"}:
        raise Refused("gone", "the process is gone")
    if not permission.may_attach(pid):
        raise Refused("denied", *permission.why_denied(pid, rights))
    if halted(states).busy:
        reason = refusal(states)
        raise Refused(reason["kind"], reason["text"])
    return pid


def refusal(states: Dict[int, str]) -> Message:
    """Return why a process with these thread states is not attached to."""
    names = {"D": "waits for a disk or file server", "T": "is stopped", "t": "is traced"}
    tid, letter = next((t, s) for t, s in sorted(states.items()) if s in names)
    text = "thread %d %s (state %s): attaching could leave the process stopped for good"
    return failure("stopped", text % (tid, names[letter], letter), fixes.NONBLOCKING)


def resume(pid: int, wait: float = 0.5) -> bool:
    """Make a process run again that we left stopped; return whether it does."""
    return runs(pid, wait) or proceed(pid)


def runs(pid: int, wait: float = 0.5) -> bool:
    """Whether a process runs; a tracer that is just detaching is given a moment for that."""
    deadline = time.monotonic() + wait
    while halted(procfs.states(pid)).stopped or procfs.is_to_stop(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def proceed(pid: int) -> bool:
    """Send SIGCONT; whether the process runs then."""
    try:
        os.kill(pid, signal.SIGCONT)
    except OSError:
        return False
    time.sleep(0.05)
    return not halted(procfs.states(pid)).stopped
