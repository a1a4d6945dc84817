"""The other end of `prompt`: run on the node of a rank, it gives a terminal to its pdb.

`python3 -S -s RUN/hook/hangtop_hook/terminal.py PID [SECONDS]`. Makes a unix socket in this user's
own directory, sends the signal, and waits for the process to come; nothing but that process, of
this user, is let in. However this ends, the process goes on.

Exit status: 0 left, 3 it cannot be asked, 4 it did not come back to the interpreter in time.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
from typing import Any, List, Optional

CANNOT, BLOCKED = 3, 4
WAIT_S = 3.0


def main(words: List[str]) -> int:
    """Run; returns the exit status."""
    from hangtop_hook import prompt, server

    pid, seconds = int(words[0]), float(words[1]) if len(words) > 1 else WAIT_S
    why = why_not(pid, signal.SIGRTMIN + prompt.SIGNAL_OFFSET)
    if why is not None:
        return say("process %d cannot be asked for a prompt: %s" % (pid, why), CANNOT)
    server.socket_directory()
    path = prompt.socket_path(pid, os.getuid())
    with socket.socket(socket.AF_UNIX) as door:
        try:
            _bind(door, path)
        except OSError as error:
            return say("no socket for it: %s: %s" % (path, error.strerror), CANNOT)
        try:
            os.kill(pid, signal.SIGRTMIN + prompt.SIGNAL_OFFSET)
            end = _let_in(door, pid, seconds, prompt.peer)
        except KeyboardInterrupt:
            return say("given up: nothing was stopped", CANNOT)
        finally:
            # From now on the process finds nobody here, should it come late.
            with contextlib.suppress(OSError):
                os.unlink(path)
                os.rmdir(os.path.dirname(path))
    if end is None:
        return say(
            "process %d did not come back to the interpreter in %g s; the request is withdrawn, "
            "and nothing was stopped" % (pid, seconds),
            BLOCKED,
        )
    with end:
        return talk(end)


def why_not(pid: int, number: int) -> Optional[str]:
    """Why the signal is not sent, which a process without the handler would die of."""
    try:
        with open("/proc/%d/status" % pid) as file:
            status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    except OSError:
        return "it is not there"
    if int(status["Uid"].split()[0]) != os.getuid():
        return "it belongs to another user"
    if not int(status["SigCgt"], 16) >> (number - 1) & 1:
        return "it was not started by `hangtop run`, or with --no-signal"
    if int(status["SigBlk"], 16) >> (number - 1) & 1:
        return "its main thread blocks the signal"
    if status["State"][:1] in "TtZX":
        return "it is stopped, traced or gone (state %s)" % status["State"][:1]
    return None


def _bind(door: socket.socket, path: str) -> None:
    """Listen at ``path``; a socket at which nobody listens is taken away."""
    from hangtop_hook import server

    if os.path.lexists(path):
        server.remove_dead(path)
    before = os.umask(0o177)
    try:
        door.bind(path)
    finally:
        os.umask(before)
    door.listen(1)


def _let_in(door: socket.socket, pid: int, seconds: float, peer: Any) -> Optional[socket.socket]:
    """Wait for the process itself; None when it does not come."""
    import time

    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not select.select([door], [], [], max(until - time.monotonic(), 0.0))[0]:
            return None
        end, _ = door.accept()
        if peer(end)[:2] == (pid, os.getuid()):
            return end
        end.close()
    return None


def talk(end: socket.socket) -> int:
    """Copy lines from the terminal to the prompt, and back what it says, until one of them ends."""
    inputs = [end, sys.stdin]
    try:
        while True:
            ready = select.select(inputs, [], [])[0]
            if end in ready:
                data = end.recv(65536)
                if not data:
                    return 0
                os.write(1, data)
            elif sys.stdin in ready:
                typed = os.read(0, 65536)
                if typed:
                    end.sendall(typed)
                else:
                    end.shutdown(socket.SHUT_WR)
                    inputs.remove(sys.stdin)
    except KeyboardInterrupt:
        return say("\nleft; it goes on", 0)
    except OSError as error:
        return say("the process has gone: %s" % error.strerror, 0)


def say(text: str, status: int) -> int:
    """Say one thing about hangtop itself; returns the status."""
    line = text.lstrip("\n")
    sys.stderr.write("%shangtop: %s\n" % ("\n" * (len(text) - len(line)), line))
    return status


if __name__ == "__main__":
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    # The terminal is the prompt's: what was typed ahead must not be lost in a buffer.
    sys.exit(main(sys.argv[1:]))
