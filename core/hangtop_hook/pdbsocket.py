"""pdb over a socket; imported by `prompt` only when a prompt is requested."""

from __future__ import annotations

import os
import pdb
import select
import socket
import sys
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from types import FrameType


class Prompt(pdb.Pdb):
    """pdb over a socket: commands that would end the program let it continue instead."""

    def __init__(self, end: socket.socket) -> None:
        # Two streams: writing to a stream that is also read from drops its read-ahead.
        lines = end.makefile("r", encoding="utf-8", errors="replace")
        out = end.makefile("w", encoding="utf-8", errors="replace")
        ours = __name__.partition(".")[0] + ".*"
        pdb.Pdb.__init__(self, stdin=lines, stdout=out, nosigint=True, readrc=False, skip=[ours])
        self.end = end
        self.left = False

    def stop_at(self, frame: FrameType) -> None:
        """Open the prompt at ``frame`` now; on return the program continues, perhaps stepping."""
        self.reset()
        current: Optional[FrameType] = frame
        while current is not None:
            self.botframe = current
            current = current.f_back
        where = "process %d" % os.getpid()
        if "RANK" in os.environ:
            where = "rank %s, %s" % (os.environ["RANK"], where)
        self.message("hangtop: %s stands still here; c or q lets it go on" % where)
        self.interaction(frame, None)
        if self.left:
            return
        current = frame
        while current is not None:
            current.f_trace = self.trace_dispatch
            current = current.f_back
        self.message("hangtop: it runs; Ctrl-C lets it go on without a prompt")
        sys.settrace(self.trace_dispatch)

    def leave(self) -> None:
        """Let the program continue, with no trace function left in it."""
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
        current: Optional[FrameType] = sys._getframe()
        while current is not None:
            current.f_trace = None
            current = current.f_back
        try:
            self.stdout.write("hangtop: left; it goes on\n")
            self.stdout.flush()
        except (OSError, ValueError):
            pass
        try:
            self.end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        for end in (self.stdin, self.stdout, self.end):  # the socket closes with the last of them
            try:
                end.close()
            except (OSError, ValueError):
                pass

    def trace_dispatch(self, frame: FrameType, event: str, arg: Any) -> Any:
        """Trace as pdb does, unless the other end is closed."""
        if self.left:
            return None
        if event != "line" and self._is_gone():
            self.leave()
            return None
        return pdb.Pdb.trace_dispatch(self, frame, event, arg)

    def _is_gone(self) -> bool:
        """Return whether the other end is closed; the end of its input is not that yet."""
        look = select.poll()
        look.register(self.end, 0)
        return bool(look.poll(0))

    def interaction(self, frame: Any, *arguments: Any) -> None:
        """Prompt; if the other end cannot be reached, leave."""
        try:
            pdb.Pdb.interaction(self, frame, *arguments)
        except (OSError, ValueError):
            self.leave()

    def message(self, msg: str, *arguments: Any, **named: Any) -> None:
        """Print to the other end."""
        try:
            pdb.Pdb.message(self, msg, *arguments, **named)
            self.stdout.flush()
        except (OSError, ValueError):
            self.leave()

    def do_continue(self, arg: str) -> Any:
        """Continue to the next breakpoint, or for good where there is none."""
        if any(lines for lines in self.get_all_breaks().values()):
            return pdb.Pdb.do_continue(self, arg)
        return self.do_quit(arg)

    do_c = do_cont = do_continue

    def do_quit(self, arg: str) -> Any:
        """Leave; the program continues."""
        self.leave()
        return 1

    do_q = do_exit = do_EOF = do_detach = do_quit

    def do_run(self, arg: str) -> None:
        """Refuse commands that would need the terminal of the program, or restart it."""
        self.message("hangtop: not in a rank that runs")

    do_restart = do_interact = do_debug = do_run

    def do_clear(self, arg: str) -> Any:
        """Clear as pdb does, which would ask on the terminal of the program before clearing all."""
        if arg:
            return pdb.Pdb.do_clear(self, arg)
        self.clear_all_breaks()
        return self.message("all breakpoints are cleared")

    do_cl = do_clear

    def help_pdb(self) -> None:
        """Print a short help: pdb's would start a pager on the terminal of the program."""
        self.message("help lists the commands, help COMMAND says what one does")
