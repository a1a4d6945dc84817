"""A pdb prompt in this process, when `hangtop debug` asks for one with a signal.

Nothing listens here. `terminal.py`, which the user has started on this node, makes a unix socket in
this user's own directory (`server.socket_directory`) and sends SIGRTMIN+8; Python runs the handler
in the main thread as soon as that returns to the interpreter, and the handler connects. Without the
socket, or if its other end is not a process of this user, it returns at once: a request that was
given up meanwhile stops no rank. When the other end closes, for whatever reason, the program
continues as before.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import sys

from . import permit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Optional

SIGNAL_OFFSET = 8
"""SIGRTMIN+8, behind the signal of `permit.dump_on_signal`."""
_CONNECT_S = 2.0
_current: Any = None
"""The prompt that is open, or has breakpoints left."""
_forks: Any = False


def wait_for_debugger(directory: str) -> bool:
    """Install the handler, where the run has signals and the program does not use this one.

    Return whether it is installed.
    """
    import signal
    import threading

    wanted = signal.SIGRTMIN + SIGNAL_OFFSET
    if threading.current_thread() is not threading.main_thread():
        return False
    if not os.path.isdir(os.path.join(directory, "stacks")) or permit.is_taken(wanted):
        return False
    signal.signal(wanted, answer)
    return True


def socket_path(pid: int, uid: int) -> str:
    """Return the path of the socket at which the client waits for the process ``pid``."""
    return "/tmp/hangtop-%d/debug-%d.sock" % (uid, pid)  # noqa: S108  # its directory is checked


def answer(number: int, frame: Optional[FrameType]) -> None:
    """Handle the signal: open a prompt if a client waits for one."""
    from .failures import attempt

    attempt("debug", _answer, frame)


def _answer(frame: Optional[FrameType]) -> None:
    global _current, _forks
    end = connect(os.getpid())
    if end is None or frame is None:
        return
    if _current is not None and not _current.left:
        _refuse(end, "a prompt is open in this process already")
        return
    if sys.gettrace() is not None:
        _refuse(end, "another debugger, or a tracer as of coverage, is at work in this process")
        return
    if not _forks:
        _forks = True
        os.register_at_fork(after_in_child=_leave_in_child)
    # Imported late, since importing pdb is slow and rarely needed.
    from .pdbsocket import Prompt

    _current = Prompt(end)
    _current.stop_at(frame)


def connect(pid: int) -> Optional[socket.socket]:
    """Connect to the client; return None if there is none, or it is another user's."""
    path = socket_path(pid, os.getuid())
    try:
        place = os.lstat(os.path.dirname(path))
        if not stat.S_ISDIR(place.st_mode) or place.st_uid != os.getuid() or place.st_mode & 0o077:
            return None
    except OSError:
        return None
    end = socket.socket(socket.AF_UNIX)
    end.settimeout(_CONNECT_S)
    try:
        end.connect(path)
        if peer(end)[1] != os.getuid():
            raise PermissionError
    except OSError:
        end.close()
        return None
    end.settimeout(None)
    return end


def peer(end: socket.socket) -> Any:
    """Return process and user of the other end, by SO_PEERCRED of unix(7)."""
    size = struct.calcsize("3i")
    return struct.unpack("3i", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))


def _refuse(end: socket.socket, why: str) -> None:
    try:
        end.sendall(("hangtop: no prompt: %s\n" % why).encode())
    except OSError:
        pass
    end.close()


def _leave_in_child() -> None:
    """Remove the prompt and its breakpoints in a forked child."""
    if _current is not None and not _current.left:
        sys.settrace(None)
        _current.left = True
        _current.end.close()
