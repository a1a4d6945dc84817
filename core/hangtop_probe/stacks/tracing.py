"""Decide whether a tracer may attach to a process, and whether the process runs afterwards.

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
    """Whether threads of a process were stopped, traced or waiting for a disk."""

    stopped: bool
    busy: bool


MAX_PAUSE_S = 3.0
"""Seconds for which a process may be stopped to take its stacks."""


class Pause:
    """The time for which a process has been seen stopped."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._since: Optional[float] = None

    def is_too_long(self) -> bool:
        """Read the state again; the main thread is stopped first."""
        stat = procfs.read_stat(self._pid)
        if stat is None or stat.state not in ("t", "T"):
            self._since = None
            return False
        now = time.monotonic()
        if self._since is None:
            self._since = now
        return now - self._since > MAX_PAUSE_S


def halted(states: Dict[int, str]) -> Halted:
    """Classify thread states: `T` and `t` are stopped, `D` cannot be interrupted."""
    letters = set(states.values())
    return Halted(bool(letters & {"T", "t"}), bool(letters & {"D", "T", "t"}))


def target_of(request: Request, rights: permission.Rights) -> int:
    """Return the pid a request names; raise `Refused` where no tracer may attach."""
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
    """Return why a tracer must not attach to a process with these thread states."""
    names = {"D": "waits for a disk or file server", "T": "is stopped", "t": "is traced"}
    tid, letter = next((t, s) for t, s in sorted(states.items()) if s in names)
    text = "thread %d %s (state %s): attaching could leave the process stopped for good"
    return failure("stopped", text % (tid, names[letter], letter), fixes.NONBLOCKING)


def resume(pid: int, wait: float = 0.5) -> bool:
    """Continue a process that we left stopped; return whether it runs."""
    return runs(pid, wait) or proceed(pid)


def runs(pid: int, wait: float = 0.5) -> bool:
    """Whether a process runs, waiting ``wait`` seconds for a tracer that is just detaching."""
    deadline = time.monotonic() + wait
    while halted(procfs.states(pid)).stopped or procfs.is_to_stop(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def proceed(pid: int) -> bool:
    """Send SIGCONT; return whether the process runs then."""
    try:
        os.kill(pid, signal.SIGCONT)
    except OSError:
        return False
    time.sleep(0.05)
    return not halted(procfs.states(pid)).stopped
