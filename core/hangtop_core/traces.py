"""strace of one process: every line into a file of the user's, the outcome as data."""

from __future__ import annotations

import logging
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import platformdirs
from msgspec import Struct

from hangtop_core.asks import Ask
from hangtop_core.attach import messages
from hangtop_core.errors import RequestError
from hangtop_core.gather import reject, resolve
from hangtop_core.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from hangtop_core.collector import Collector
    from hangtop_core.errors import HangtopError

log = logging.getLogger(__name__)

MAX_SECONDS = 60.0


class StraceResult(Struct, frozen=True):
    """How an strace ended."""

    node: str
    pid: int
    path: str
    """The file with every line."""
    lines: int
    dropped: int
    """Lines the node could not send fast enough."""
    seconds: float
    idle_polls: int
    """Polls that timed out: counted, not listed."""
    running_again: bool | None
    """Whether the process was seen running afterwards; None when that is not known."""


def folder() -> Path:
    """Return the folder of saved straces, which only the user can read; it is made if needed."""
    path = Path(platformdirs.user_state_dir("hangtop")) / "strace"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def new_file(node: str, pid: int) -> tuple[Path, TextIO]:
    """Make and open a new file for a trace, named by node, pid and time.

    Raises:
        OSError: when it cannot be made.
    """
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", node)[:60].lstrip(".")
    stamp = time.strftime("%Y%m%dT%H%M%S")
    for number in range(1000):
        path = folder() / f"{name}-{pid}-{stamp}{f'-{number}' if number else ''}.txt"
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        except FileExistsError:
            continue
        return path, open(fd, "w", encoding="utf-8", errors="backslashreplace")
    raise FileExistsError(f"{path}: too many traces in one second")


class Trace:
    """One strace under way. Belongs to the session's thread."""

    def __init__(
        self,
        node: str,
        pid: int,
        seconds: float,
        on_lines: Callable[[Sequence[str]], None],
        future: Future[StraceResult],
    ) -> None:
        """Open the file.

        Raises:
            OSError: when it cannot be made.
        """
        self.node = node
        self.pid = pid
        self.seconds = min(max(seconds, 0.1), MAX_SECONDS)
        self.request_id: int | None = None
        self.future = future
        self._on_lines = on_lines
        self._path, self._file = new_file(node, pid)
        self._count = 0
        self._lost = 0
        self._end: messages.TraceEnd | None = None

    def start(self, collector: Collector, over: Callable[[Trace], None]) -> None:
        """Ask the node; ``over`` is called when it is over, before the future is resolved."""
        link = collector.link(self.node)
        what = f"strace -f -p PID, for {self.seconds:g} s"
        params = {"pid": self.pid, "seconds": self.seconds}
        ask = Ask("strace", (self.pid,), params, what, self._take, self.seconds + 5, pauses=True)

        def done(error: HangtopError | None) -> None:
            over(self)
            self._finish(error)

        self.request_id = collector.ask(link, ask, done, self._take_end)

    def _take(self, node: str, raw: Any) -> None:
        piece = messages.decode(raw, messages.TracePiece)
        self._lost += piece.lost
        self._count += len(piece.lines)
        self._file.writelines(line + "\n" for line in piece.lines)
        self._file.flush()
        try:
            self._on_lines([clean(line, 500) for line in piece.lines])
        except Exception:
            log.exception("whoever watches the trace failed; it is saved all the same")

    def _take_end(self, summary: object) -> None:
        self._end = messages.decode(summary, messages.TraceEnd)

    def _finish(self, error: HangtopError | None) -> None:
        self._file.close()
        if error is not None:
            if not self._count:
                self._path.unlink()
            reject(self.future, error)
            return
        end = self._end or messages.TraceEnd()
        result = StraceResult(
            self.node,
            self.pid,
            str(self._path),
            self._count,
            end.dropped or self._lost,
            end.seconds,
            end.idle_polls,
            end.running_again,
        )
        resolve(self.future, result)


def begin(trace: Trace, collector: Collector, running: list[Trace]) -> None:
    """Start a trace; it is among those that run until it has ended.

    Raises:
        RequestError: when the process is being traced already, or there is no such node.
    """
    if any((other.node, other.pid) == (trace.node, trace.pid) for other in running):
        raise RequestError(f"process {trace.pid} is being traced already")
    collector.link(trace.node)
    running.append(trace)
    trace.start(collector, running.remove)


def cancel(node: str, pid: int, collector: Collector, running: list[Trace]) -> None:
    """End the trace of a process early."""
    for trace in running:
        if (trace.node, trace.pid) == (node, pid) and trace.request_id is not None:
            collector.link(node).cancel(trace.request_id)
