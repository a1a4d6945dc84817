"""Running a command in our place: its exit status is ours, and it gets each signal once.

A signal from a terminal, a scheduler or `timeout` goes to all processes of a group or a step, the
command among them; one from `kill` goes to this process alone, and has to be forwarded. A witness
process in the same group, which only waits, distinguishes the two: a signal that it also gets has
reached the command. A signal delivered twice would break the orderly shutdown of a launcher.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PASSED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_GROUP_S = 0.5
"""Seconds by which another process of the group may get a signal later than this one."""


class Witness:
    """A process of our group that reports which signals it gets."""

    def __init__(self) -> None:
        self.told, telling = os.pipe()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _tell(telling, parent)
            finally:
                os._exit(0)
        os.close(telling)

    def got(self, number: int) -> bool:
        """Return whether it also gets this signal, waiting a moment for it."""
        while select.select([self.told], [], [], _GROUP_S)[0]:
            numbers = os.read(self.told, 64)
            if not numbers or number in numbers:
                return bool(numbers)
        return False

    def end(self) -> None:
        """End it."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.told)


def _tell(telling: int, parent: int) -> None:
    """Write the number of every signal received, while the parent lives."""
    while os.getppid() == parent:
        received = signal.sigtimedwait(PASSED, 1.0)
        if received is not None:
            os.write(telling, bytes([received.si_signo]))


def start(command: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run a command until it ends; return its status, negative for a signal that ended it.

    Raises:
        OSError: it cannot be started.
    """
    caught = {signal.SIGCHLD, *PASSED}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, caught)
    witness = Witness()
    try:
        process = subprocess.Popen(
            list(command),
            env={**os.environ, **variables},
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before),
        )
        while process.poll() is None:
            number = signal.sigwaitinfo(caught).si_signo
            if number != signal.SIGCHLD and not witness.got(number):
                process.send_signal(number)
    finally:
        witness.end()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return process.returncode


def end_alike(status: int) -> int:
    """Return the command's exit status, or end by the signal that ended it, without a core."""
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -status not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status
