"""The terminal driver: Textual's own, minus what it leaves behind when the app ends or stops."""

from __future__ import annotations

import contextlib
import os
import signal

from textual.drivers.linux_driver import LinuxDriver

CLEAR = "\x1b[2J\x1b[H"


class Terminal(LinuxDriver):
    """Textual's Linux driver, which also clears the screen on exit and stops the process group."""

    def stop_application_mode(self) -> None:
        """Clear the screen, then leave application mode.

        GNU screen (without `altscreen on`), Linux's console and a vt100 have no alternate screen:
        without clearing, the prompt would appear in the middle of the app's last screen.
        """
        self.write(CLEAR)
        super().stop_application_mode()

    def _sigtstp_application(self, *_: object) -> None:
        """Stop the whole process group: a shell only notices when its own child stops.

        That child may be `make`, `sudo` or a script that waits for hangtop. Where no shell would
        notice, nothing stops, as the kernel does for orphaned process groups.
        """
        if not has_shell():
            return
        if self._auto_restart:
            self.suspend_application_mode()
            self._must_signal_resume = True
        os.killpg(os.getpgrp(), signal.SIGSTOP)


def has_shell() -> bool:
    """Return whether a shell would notice that this process stops, and could resume it with `fg`.

    There is none where `ssh -t`, tmux, a container or srun started hangtop directly: the first
    ancestor outside its process group then belongs to another session, or is hidden.
    """
    import psutil  # imported late to keep the start fast

    group, session = os.getpgrp(), os.getsid(0)
    # With hidepid, processes of other users are hidden; the user's own shell is not.
    with contextlib.suppress(psutil.Error, OSError):
        for parent in psutil.Process().parents():
            if os.getpgid(parent.pid) != group:
                return os.getsid(parent.pid) == session
    return False
