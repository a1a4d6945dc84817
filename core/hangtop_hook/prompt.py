"""A pdb prompt in this process, when `hangtop debug` asks for one with a signal.

Nothing listens here. `terminal.py`, which a person has started on this node, makes a unix socket in
this user's own directory (`server.socket_directory`) and sends SIGRTMIN+8; Python runs the handler
in the main thread as soon as that comes back to the interpreter, and the handler connects. Without
the socket, or where its other end is no process of this user, it returns at once: a request that
was given up in the meantime stops nobody. When the other end goes, however it goes, the program
runs on as before.
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
    """Install the handler, where the run has signals and the program has not taken this one."""
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
    """Where the other end waits for the process ``pid``."""
    return "/tmp/hangtop-%d/debug-%d.sock" % (uid, pid)  # noqa: S108  # its directory is checked


def answer(number: int, frame: Optional[FrameType]) -> None:
    """Handle the signal: open a prompt where somebody waits for one."""
    from . import attempt

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
    _current = make(end)
    _current.stop_at(frame)


def connect(pid: int) -> Optional[socket.socket]:
    """Connect to who asks; None where nobody does, or who does is somebody else."""
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
    """A forked child has neither the prompt nor its breakpoints."""
    if _current is not None and not _current.left:
        sys.settrace(None)
        _current.left = True
        _current.end.close()


def make(end: socket.socket) -> Any:
    """Make the prompt; pdb is imported only now, so that nobody pays for it who does not ask."""
    import pdb
    import select

    class Prompt(pdb.Pdb):
        """pdb over a socket: what would end the program lets it go on instead."""

        def __init__(self) -> None:
            # Two streams: writing to one that is also read from drops what it has read ahead.
            lines = end.makefile("r", encoding="utf-8", errors="replace")
            out = end.makefile("w", encoding="utf-8", errors="replace")
            pdb.Pdb.__init__(
                self, stdin=lines, stdout=out, nosigint=True, readrc=False, skip=["hangtop_hook.*"]
            )
            self.end = end
            self.left = False

        def stop_at(self, frame: FrameType) -> None:
            """Open the prompt at ``frame`` now; on return the program goes on, maybe stepping."""
            self.reset()
            one: Optional[FrameType] = frame
            while one is not None:
                self.botframe = one
                one = one.f_back
            where = "process %d" % os.getpid()
            if "RANK" in os.environ:
                where = "rank %s, %s" % (os.environ["RANK"], where)
            self.message("hangtop: %s stands still here; c or q lets it go on" % where)
            self.interaction(frame, None)
            if self.left:
                return
            one = frame
            while one is not None:
                one.f_trace = self.trace_dispatch
                one = one.f_back
            self.message("hangtop: it runs; Ctrl-C lets it go on without a prompt")
            sys.settrace(self.trace_dispatch)

        def leave(self) -> None:
            """Let the program go on, with nothing of this left in it."""
            if self.left:
                return
            self.left = True
            sys.settrace(None)
            try:
                self.clear_all_breaks()
            except Exception:  # noqa: S110  # the program goes on whatever pdb thinks
                pass
            self.set_continue()
            sys.settrace(None)
            one: Optional[FrameType] = sys._getframe()
            while one is not None:
                one.f_trace = None
                one = one.f_back
            try:
                self.stdout.write("hangtop: left; it goes on\n")
                self.stdout.flush()
            except (OSError, ValueError):
                pass
            try:
                self.end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            self.stdin.close()
            self.end.close()

        def trace_dispatch(self, frame: FrameType, event: str, arg: Any) -> Any:
            """As pdb's, unless nobody is there any more."""
            if self.left:
                return None
            if event != "line" and self._is_gone():
                self.leave()
                return None
            return pdb.Pdb.trace_dispatch(self, frame, event, arg)

        def _is_gone(self) -> bool:
            """Whether the other end is closed; the end of what it types is not that yet."""
            look = select.poll()
            look.register(self.end, 0)
            return bool(look.poll(0))

        def interaction(self, frame: Any, *rest: Any) -> None:
            """Prompt; who cannot be reached any more has left."""
            try:
                pdb.Pdb.interaction(self, frame, *rest)
            except (OSError, ValueError):
                self.leave()

        def message(self, msg: str, *rest: Any, **named: Any) -> None:
            """Print for who is there."""
            try:
                pdb.Pdb.message(self, msg, *rest, **named)
                self.stdout.flush()
            except (OSError, ValueError):
                self.leave()

        def do_continue(self, arg: str) -> Any:
            """Go on: to the next breakpoint, or for good where there is none."""
            if any(one for one in self.get_all_breaks().values()):
                return pdb.Pdb.do_continue(self, arg)
            return self.do_quit(arg)

        do_c = do_cont = do_continue

        def do_quit(self, arg: str) -> Any:
            """Leave; the program goes on."""
            self.leave()
            return 1

        do_q = do_exit = do_EOF = do_detach = do_quit

        def do_run(self, arg: str) -> None:
            """Refuse what would need the terminal of the program, or start it anew."""
            self.message("hangtop: not in a rank that runs")

        do_restart = do_interact = do_debug = do_run

    return Prompt()
