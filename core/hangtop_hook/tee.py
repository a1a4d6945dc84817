"""Copies a rank's log to where its output went before, line by line, with a label.

Run beside the rank, as a program of its own: `tee.py LABEL PID [FD FILE OFFSET]...`. It ends soon
after the rank, however that ends. Descriptor 3 is written to when the rank is about to end; 4 is
closed then, as soon as everything is copied. Whatever happens to this process, the rank does not
notice.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from typing import List, Optional

PAUSE_S = 0.1
IDLE_S = 0.5
"""Seconds after which an unfinished line is shown: it may be a question."""
MAX_LINE = 1 << 20
"""Limit in bytes of an unfinished line: longer ones are shown in parts."""
LAST_S = 10
"""Seconds for the last lines: their reader may have stopped."""
END, DONE = 3, 4


class Copy:
    """One file and where its lines go."""

    def __init__(self, fd: int, path: str, offset: int, label: bytes) -> None:
        self.fd = fd
        self.file = os.open(path, os.O_RDONLY)
        os.lseek(self.file, offset, os.SEEK_SET)
        self.label = label
        self.rest = b""
        self.idle = 0.0

    def step(self) -> bool:
        """Copy new lines; return whether there were any."""
        data = os.read(self.file, 1 << 16)
        if not data:
            self.idle += PAUSE_S
            if self.rest and self.idle > IDLE_S:
                self.finish()
            return False
        self.idle = 0.0
        lines = (self.rest + data).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self.rest = lines.pop()
        self._write(b"".join(self.label + line + b"\n" for line in lines))
        if len(self.rest) > MAX_LINE:
            self.finish()
        return True

    def finish(self) -> None:
        """Write a last line that has no end."""
        remainder, self.rest = self.rest, b""
        if remainder:
            self._write(self.label + remainder + b"\n")

    def _write(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self.fd, data) :]
            except BlockingIOError:  # another process has made the terminal non-blocking
                select.select([], [self.fd], [])


def let_go() -> None:
    """Close all inherited descriptors of the rank: its sockets must close with it.

    gloo and NCCL leave theirs open in processes that a rank starts, and while those live its peers
    would not see that it has ended.
    """
    for name in os.listdir("/proc/self/fd"):
        if int(name) > DONE:
            with contextlib.suppress(OSError):
                os.close(int(name))


def start_time(pid: int) -> Optional[bytes]:
    """Return when a process was started, in the kernel's words; None when it has ended."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else fields[19]


def copy(copies: List[Copy]) -> None:
    """Copy until there is no more for now."""
    while any([part.step() for part in copies]):  # noqa: C419  # none is to be left out
        pass


def main(arguments: List[str]) -> None:
    """Copy until the rank has ended."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)
    let_go()
    label, pid = os.fsencode(arguments[0]), int(arguments[1])
    started = start_time(pid)
    files = arguments[2:]
    copies = [
        Copy(int(files[i]), files[i + 1], int(files[i + 2]), label) for i in range(0, len(files), 3)
    ]
    ending = [END]
    while started is not None and start_time(pid) == started:
        copy(copies)
        if select.select(ending, [], [], PAUSE_S)[0]:
            ending = []
            copy(copies)
            os.close(DONE)
    signal.alarm(LAST_S)
    copy(copies)
    for log in copies:
        log.finish()


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except OSError:
        sys.exit(1)  # the reader has exited; the files are complete all the same
