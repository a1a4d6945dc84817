"""A child process on pipes, in a session of its own, that can always be got rid of."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

GRACE = 0.3
"""Seconds a child that has closed its output gets to exit by itself."""
KILL_WAIT = 2.0
"""Seconds a killed child may take; one in uninterruptible sleep takes longer, and is left."""


class Child:
    """One started process; `stdin`, `stdout` and `stderr` are our non-blocking pipe ends.

    A session of its own keeps the terminal's Ctrl-C away from it, and lets `end` reach the
    processes it started. It does not outlive us: its standard input ends with us.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        """Start ``argv``.

        Raises:
            OSError: when it cannot be started.
        """
        self._process = subprocess.Popen(
            argv,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            # A copy: exec reads the C array otherwise, which another thread may be growing.
            env=dict(os.environ),
        )
        self.pid = self._process.pid
        self.stdin, self.stdout, self.stderr = (
            _own(pipe) for pipe in (self._process.stdin, self._process.stdout, self._process.stderr)
        )

    def interrupt(self) -> None:
        """Send it a SIGINT, for what can end in order."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    def end(self, at_once: bool = False) -> int | None:
        """Make sure the process is gone and return its exit status, negative for a signal.

        Waits at most `GRACE` + `KILL_WAIT` seconds; None when even a kill did not end it.
        """
        if not at_once:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._process.wait(GRACE)
        self._kill_session()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(KILL_WAIT)
        return None

    def _kill_session(self) -> None:
        # The group is ours for as long as the leader was not waited for, so no stranger can have
        # its number.
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)


def _own(pipe: object) -> int:
    """Take the descriptor out of a file object, which would close it at its own end."""
    fileno = pipe.fileno()  # type: ignore[attr-defined]  # IO[bytes] | None: always set for PIPE
    own = os.dup(fileno)
    pipe.close()  # type: ignore[attr-defined]
    os.set_blocking(own, False)
    return own
