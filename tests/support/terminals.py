"""Programs at a terminal, as a person would see them."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import subprocess
import time
from typing import TYPE_CHECKING

from support.processes import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Sequence


def read_until(terminal: int, text: bytes | None) -> bytes:
    """Read what a program tells the terminal, up to ``text`` or its end."""
    told, deadline = b"", time.monotonic() + PATIENCE
    while text is None or text not in told:
        left = deadline - time.monotonic()
        assert left > 0, told
        if not select.select([terminal], [], [], left)[0]:
            continue
        try:
            part = os.read(terminal, 4096)
        except OSError:  # the other end is closed
            part = b""
        if not part:
            assert text is None, told
            break
        told += part
    return told


def interrupted(argv: Sequence[str], when: bytes) -> tuple[int, str, bytes]:
    """Run a program with stderr at a terminal, and interrupt it once it has said something.

    Return its exit status, its stdout, and all that it has told the terminal.
    """
    terminal, end = pty.openpty()
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=end, text=True, start_new_session=True
    ) as process:
        os.close(end)
        try:
            told = read_until(terminal, when)
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=PATIENCE)
            told += read_until(terminal, None)
        finally:
            process.kill()
            os.close(terminal)
    return process.returncode, out, told


def say_yes(command: str) -> None:
    """Run a command at a terminal, as a person would, and accept the key it asks about."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp("sh", ["sh", "-c", command])
    said = b""
    answered = False
    with contextlib.suppress(OSError):  # the terminal is gone with its last process
        while data := os.read(terminal, 4096):
            said += data
            if b"yes/no" in said and not answered:
                answered = bool(os.write(terminal, b"yes\n"))
    os.close(terminal)
    assert os.waitpid(pid, 0)[1] == 0, said
    assert b"yes/no" in said, said
