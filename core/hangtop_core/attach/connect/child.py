"""A child process on pipes, in a session of its own, that can always be ended."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from functools import cache
from typing import TYPE_CHECKING

from hangtop_core.attach.connect.spawn import spawn

if TYPE_CHECKING:
    from collections.abc import Sequence

GRACE = 0.3
"""Seconds that a child which has closed its output gets to exit."""
KILL_WAIT = 2.0
"""Seconds that a killed child may take; one in uninterruptible sleep takes longer, and is left."""
_FIRST_LOOK, _LAST_LOOK = 0.0005, 0.05
"""Seconds between two checks whether it has ended, ever longer."""


class Child:
    """One started process; `stdin`, `stdout` and `stderr` are hangtop's non-blocking pipe ends.

    A session of its own keeps the terminal's Ctrl-C away from the process, and lets `end` reach its
    children. It does not outlive hangtop: its standard input ends with it.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        """Start ``argv``; it inherits no other descriptor of hangtop.

        Raises:
            OSError: the process cannot be started.
        """
        ends: list[int] = []
        try:
            for _ in range(3):
                ends += _pipe()
            self.stdin, self.stdout, self.stderr = ends[1], ends[2], ends[4]
            theirs = ends[0], ends[3], ends[5]
            self.pid = spawn(argv, theirs, _inherited())
        except OSError:
            for fd in ends:
                os.close(fd)
            raise
        for fd in theirs:
            os.close(fd)
        for fd in (self.stdin, self.stdout, self.stderr):
            os.set_blocking(fd, False)
        self._ended = False
        self._code: int | None = None

    def interrupt(self) -> None:
        """Send it a SIGINT, for a program that ends in order on it."""
        if not self._has_ended():
            os.kill(self.pid, signal.SIGINT)

    def end(self, at_once: bool = False) -> int | None:
        """End the process and return its exit status, negative for a signal.

        Waits at most `GRACE` + `KILL_WAIT` seconds; None when even a kill did not end it.
        """
        if not at_once and self._ends_within(GRACE):
            return self._code
        # The process group exists until the leader is waited for, so no other process can have its
        # number.
        if not self._has_ended():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        self._ends_within(KILL_WAIT)
        return self._code

    def _ends_within(self, seconds: float) -> bool:
        until, look = time.monotonic() + seconds, _FIRST_LOOK
        while not self._has_ended():
            left = until - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(look, left))
            look = min(look * 2, _LAST_LOOK)
        return True

    def _has_ended(self) -> bool:
        if not self._ended:
            with contextlib.suppress(
                ChildProcessError
            ):  # only this class waits for it, so an error is a bug
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid == 0:
                    return False
                self._code = os.waitstatus_to_exitcode(status)
            self._ended = True
        return self._ended


@cache
def _inherited() -> list[int]:
    """Return the descriptors that hangtop's parent left open for all programs, found once.

    Descriptors that Python opens are closed when a program is executed.
    """
    descriptors = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing itself is over
            if int(name) > 2 and os.get_inheritable(int(name)):
                descriptors.append(int(name))
    return descriptors


def _pipe() -> list[int]:
    """Return a pipe whose ends are above the standard streams, which are assigned singly."""
    ends = list(os.pipe())
    for place, fd in enumerate(ends):
        if fd <= 2:  # hangtop was started without that stream
            try:
                ends[place] = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
            except OSError:
                for end in ends:
                    os.close(end)
                raise
            os.close(fd)
    return ends
