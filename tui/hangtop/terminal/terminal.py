"""The terminal that the app draws on, where Textual's own way with it leaves something behind."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading

from textual.drivers.linux_driver import LinuxDriver

CLEAR = "\x1b[2J\x1b[H"


class Terminal(LinuxDriver):
    """Leaves no picture behind, and takes what started hangtop along to the background."""

    def stop_application_mode(self) -> None:
        """Clear the screen, then leave it.

        GNU screen (without `altscreen on`), Linux's console and a vt100 have no second screen that
        could go away with its picture: the prompt would stand in the midst of it.
        """
        self.write(CLEAR)
        super().stop_application_mode()

    def _sigtstp_application(self, *_: object) -> None:
        """Stop the whole process group: a shell sees only what it has started itself.

        That may be `make`, `sudo` or a script that waits for hangtop, and goes on waiting. Where no
        shell would notice, nothing stops, as the kernel has it for orphaned process groups.
        """
        if not has_shell():
            return
        if self._auto_restart:
            self.suspend_application_mode()
            self._must_signal_resume = True
        os.killpg(os.getpgrp(), signal.SIGSTOP)


def has_shell() -> bool:
    """Whether a shell would notice that this process stops, and could bring it back by `fg`.

    Nobody does where `ssh -t`, tmux, a container or srun has started hangtop without one: there the
    first ancestor outside of its process group belongs to another session, or cannot be seen.
    """
    import psutil  # no first screen waits for it

    group, session = os.getpgrp(), os.getsid(0)
    # With hidepid other users' processes are hidden; one's own shell is not.
    with contextlib.suppress(psutil.Error, OSError):
        for parent in psutil.Process().parents():
            if os.getpgid(parent.pid) != group:
                return os.getsid(parent.pid) == session
    return False


def end_with_terminal(fileno: int) -> None:
    """End this process, as SIGHUP would, as soon as the terminal behind a descriptor is gone.

    A process that ignores SIGHUP (`nohup`), or whose terminal does not control it (`setsid`, some
    containers), is told nothing when the terminal goes. Textual (8.2 drivers/linux_driver.py) then
    reads the end of its input again and again, on a whole processor, and nobody is left to press
    `q`.
    """
    threading.Thread(
        target=_wait_for_end, args=(fileno,), name="hangtop-hangup", daemon=True
    ).start()


def _wait_for_end(fileno: int) -> None:
    poll = select.poll()
    poll.register(fileno, 0)  # a hang-up is told in any case, and nothing else is asked for
    if any(told & select.POLLHUP for _, told in poll.poll()):
        # Probes and tools end with their input: nothing of ours outlives this.
        os._exit(128 + signal.SIGHUP)
