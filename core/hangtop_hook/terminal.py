"""The client of `prompt`: run on the node of a rank, it connects a terminal to the rank's pdb.

`python3 -S -s RUN/hook/hangtop_hook/terminal.py PID [SECONDS]`. Makes a unix socket in this user's
own directory, sends the signal, and waits for the process to connect; only that process, of this
user, is accepted. However this ends, the process continues.

A process without the hook, of Python 3.14 or later, is asked by `sys.remote_exec` (PEP 768), with
modules that are carried along (`carried`). It may run the request long after that was given up;
then it finds no socket, and continues.

Exit status: 0 left, 3 it cannot be asked, 4 it did not return to the interpreter in time, 5 it
ended while the prompt was open.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
from typing import Any, List, Optional

CANNOT, BLOCKED, ENDED = 3, 4, 5
WAIT_S = 3.0
_MOST = 10
"""Limit of the wait, as a multiple of the timeout, where the process gets no processor."""
_LOOK_S = 0.1
_LAST = 1000
"""Number of bytes from the end of the output that are examined; a line of ours is shorter."""


def main(words: List[str], *, remote: bool = False) -> int:
    """Run the client; return the exit status. ``remote`` uses Python's debugging, not a signal."""
    from . import prompt, server

    pid, seconds = int(words[0]), float(words[1]) if len(words) > 1 else WAIT_S
    number = signal.SIGRTMIN + prompt.SIGNAL_OFFSET
    why = why_not(pid, None if remote else number)
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
            if not remote:
                os.kill(pid, number)
            elif (why := _ask_python(pid, path)) is not None:
                return say("process %d cannot be asked for a prompt: %s" % (pid, why), CANNOT)
            end = _let_in(door, pid, seconds, prompt.peer)
        except KeyboardInterrupt:
            return say("given up: nothing was stopped", CANNOT)
        finally:
            # From now on a late process finds no socket here.
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


def _ask_python(pid: int, place: str) -> Optional[str]:
    """Let Python run our program in its main thread, once that returns to the interpreter.

    Return why it could not be asked.
    """
    from . import carried

    path = place[: -len(".sock")] + ".py"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # from a request that was given up
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(carried.for_rank(path, place))
    try:
        sys.remote_exec(pid, path)  # type: ignore[attr-defined, unused-ignore]
    except (OSError, RuntimeError, ValueError) as error:
        os.unlink(path)
        return _in_words(error)
    return None


def _in_words(error: BaseException) -> str:
    """Return why Python refused; the actual error is at one end of the chain."""
    first: BaseException = error
    while first.__context__ is not None:
        first = first.__context__
    text = str(error) if first is error else "%s (%s)" % (error, first)
    if isinstance(error, PermissionError):
        text += "; it needs the right to trace the process: see hangtop doctor"
    return " ".join(text.split())[:400]


def why_not(pid: int, number: Optional[int]) -> Optional[str]:
    """Return why it cannot be asked; signal ``number`` would kill a process without the handler."""
    try:
        with open("/proc/%d/status" % pid, errors="replace") as file:
            status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
        owner, state = int(status["Uid"].split()[0]), status["State"][:1]
        caught, blocked = int(status["SigCgt"], 16), int(status["SigBlk"], 16)
    except (OSError, KeyError, IndexError, ValueError):  # it ended meanwhile
        return "it is not there"
    if owner != os.getuid():
        return "it belongs to another user"
    if number is not None and not caught >> (number - 1) & 1:
        return "it was not started by `hangtop run`, or with --no-signal"
    if number is not None and blocked >> (number - 1) & 1:
        return "its main thread blocks the signal"
    if state in "TtZX":
        return "it is stopped, traced or gone (state %s)" % state
    inside = "run hangtop inside (docker exec, kubectl exec)"
    if len(status.get("NSpid", "").split()) > 1:
        return "it is in a container with process ids of its own: %s" % inside
    with contextlib.suppress(OSError):
        if not os.path.samefile("/tmp", "/proc/%d/root/tmp" % pid):  # noqa: S108  # only compared
            return "it is in a container with a /tmp of its own: %s" % inside
    return None


def _bind(door: socket.socket, path: str) -> None:
    """Listen at ``path``; a socket without a listener is removed."""
    from . import server

    if os.path.lexists(path):
        server.remove_dead(path)
    before = os.umask(0o177)
    try:
        door.bind(path)
    finally:
        os.umask(before)
    door.listen(1)


def _let_in(door: socket.socket, pid: int, seconds: float, peer: Any) -> Optional[socket.socket]:
    """Wait for the process itself to connect; return None when it does not.

    Time in which its main thread wants a processor and gets none hardly counts.
    """
    import time

    until, left, ran = time.monotonic() + _MOST * seconds, seconds, _ran(pid)
    while True:
        began = time.monotonic()
        ready = select.select([door], [], [], min(max(left, 0.0), _LOOK_S))[0]
        if ready:
            end, _ = door.accept()
            if peer(end)[:2] == (pid, os.getuid()):
                return end
            end.close()
        if began > until or (left <= 0.0 and not ready):
            return None
        before, ran, spent = ran, _ran(pid), time.monotonic() - began
        left -= spent if ran is None or before is None else min(spent, ran - before)


def _ran(pid: int) -> Optional[float]:
    """Return the processor seconds of a runnable main thread; None if it sleeps or has ended."""
    with contextlib.suppress(OSError):
        with open("/proc/%d/task/%d/stat" % (pid, pid), errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        if fields[:1] == ["R"]:
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return None


def talk(end: socket.socket) -> int:
    """Copy lines between the terminal and the prompt, until one of them ends."""
    inputs = [end, sys.stdin]
    output = b""
    try:
        while True:
            ready = select.select(inputs, [], [])[0]
            if end in ready:
                data = end.recv(65536)
                if not data:
                    break
                os.write(1, data)
                output = (output + data)[-_LAST:]
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
        return say("\nthe process has ended: %s" % error.strerror, ENDED)
    # The prompt's last line says that it was left, or why there is none.
    if b"hangtop: " in output.rstrip(b"\n").rpartition(b"\n")[2]:
        return 0
    return say("\nthe process has ended", ENDED)


def say(text: str, status: int) -> int:
    """Print a message about hangtop itself; return the status."""
    line = text.lstrip("\n")
    sys.stderr.write("%shangtop: %s\n" % ("\n" * (len(text) - len(line)), line))
    return status


if __name__ == "__main__":
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    from hangtop_hook import terminal

    # The terminal belongs to the prompt: typed-ahead input must not be lost in a buffer.
    sys.exit(terminal.main(sys.argv[1:]))
