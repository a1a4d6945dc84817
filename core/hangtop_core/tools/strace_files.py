"""strace of one process: lines saved in a file per thread, the outcome as data."""

from __future__ import annotations

import logging
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

import platformdirs
from msgspec import Struct

from hangtop_core.attach.wire import messages
from hangtop_core.attach.wire.futures import reject, resolve
from hangtop_core.collect.requests import Ask
from hangtop_core.errors import RequestError
from hangtop_core.text.clean import clean
from hangtop_core.tools.strace import thread_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from hangtop_core.collect.collector import Collector
    from hangtop_core.errors import HangtopError

log = logging.getLogger(__name__)

MAX_SECONDS = 60.0
MAX_FILES = 256
"""Maximum number of files of one trace."""
_PREFIX = re.compile(r"^\[pid +\d+\] ")


class StraceResult(Struct, frozen=True):
    """The result of an strace."""

    node: str
    pid: int
    path: str
    """The files with all lines, with `TID` for each thread's id."""
    lines: int
    dropped: int
    """Number of lines that the node could not send fast enough."""
    seconds: float
    idle_polls: int
    """Polls that timed out: counted, not listed."""
    running_again: bool | None
    """Whether the process was seen running afterwards; None if unknown."""
    files: int = 1
    """Number of files."""
    size: int = 0
    """Bytes in all of them."""
    unsaved: str | None = None
    """Why lines were not saved from some moment on: for instance a full disk here."""


class Saved:
    """The lines of a trace, a file for each thread, as `strace -ff` names them: NAME.TID."""

    def __init__(self, node: str, pid: int) -> None:
        """Make the file of the main thread.

        Raises:
            OSError: when it cannot be made.
        """
        self._pid = pid
        self.stem = _new_stem(node, pid)
        self.size = 0
        """Bytes written."""
        self.failed: str | None = None
        """Why nothing more is written."""
        self._files: dict[int, TextIO] = {pid: self._open(pid)}

    @property
    def count(self) -> int:
        """Number of files."""
        return len(self._files)

    def write(self, lines: Sequence[str]) -> None:
        """Append lines to their threads' files; beyond `MAX_FILES` threads to the main one's.

        An error is noted, and ends the saving.
        """
        if self.failed is not None:
            return
        try:
            self._write(lines)
        except OSError as error:
            self.failed = error.strerror or str(error)

    def _write(self, lines: Sequence[str]) -> None:
        for line in lines:
            tid, text = thread_of(line, self._pid)
            if tid not in self._files and len(self._files) < MAX_FILES:
                self._files[tid] = self._open(tid)
            file = self._files.get(tid)
            own = _PREFIX.sub("", line) if file is not None and text is not None else line
            self.size += (file or self._files[self._pid]).write(own + "\n")
        for file in self._files.values():
            file.flush()

    def close(self, *, keep: bool) -> None:
        """Close the files; remove them unless they are kept."""
        for tid, file in self._files.items():
            try:
                file.close()
            except OSError as error:
                self.failed = error.strerror or str(error)
            if not keep:
                Path(f"{self.stem}.{tid}").unlink(missing_ok=True)

    def _open(self, tid: int) -> TextIO:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        fd = os.open(f"{self.stem}.{tid}", flags, 0o600)
        return open(fd, "w", encoding="utf-8", errors="backslashreplace")


def folder() -> Path:
    """Return the folder of saved straces, which only the user can read; it is made if needed."""
    path = Path(platformdirs.user_state_dir("hangtop")) / "strace"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def _new_stem(node: str, pid: int) -> Path:
    """Return an unused name by node, pid and time."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", node)[:60].lstrip(".")
    stamp = time.strftime("%Y%m%dT%H%M%S")
    for number in range(1000):
        stem = folder() / f"{name}-{pid}-{stamp}{f'-{number}' if number else ''}.strace"
        if not Path(f"{stem}.{pid}").exists():
            return stem
    raise FileExistsError(f"{stem}: too many traces in one second")


class Order(NamedTuple):
    """A request for a trace."""

    node: str
    pid: int
    seconds: float
    on_lines: Callable[[Sequence[str]], None]
    future: Future[StraceResult]


class Trace:
    """A running strace. Belongs to the session's thread."""

    def __init__(self, order: Order) -> None:
        """Open the file of the main thread.

        Raises:
            OSError: when it cannot be made.
        """
        self.node, self.pid, seconds, self._on_lines, self.future = order
        self.seconds = min(max(seconds, 0.1), MAX_SECONDS)
        self.request_id: int | None = None
        self._saved = Saved(self.node, self.pid)
        self._count = 0
        self._lost = 0
        self._end: messages.TraceEnd | None = None

    def start(self, collector: Collector, over: Callable[[Trace], None]) -> None:
        """Ask the node; ``over`` is called at the end, before the future is resolved."""
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
        self._saved.write(piece.lines)
        try:
            self._on_lines([clean(line, 500) for line in piece.lines])
        except Exception:
            log.exception("whoever watches the trace failed; it is saved all the same")

    def _take_end(self, summary: object) -> None:
        self._end = messages.decode(summary, messages.TraceEnd)

    def _finish(self, error: HangtopError | None) -> None:
        self._saved.close(keep=error is None or bool(self._count))
        if error is not None:
            reject(self.future, error)
            return
        end = self._end or messages.TraceEnd()
        result = StraceResult(
            self.node,
            self.pid,
            f"{self._saved.stem}.TID",
            self._count,
            end.dropped or self._lost,
            end.seconds,
            end.idle_polls,
            end.running_again,
            self._saved.count,
            self._saved.size,
            self._saved.failed,
        )
        resolve(self.future, result)


def begin(order: Order, collector: Collector, running: list[Trace]) -> None:
    """Start a trace and add it to the running ones until it has ended.

    Raises:
        RequestError: when the process is being traced already, there is no such node, or no place
            to save it.
    """
    if any((active.node, active.pid) == (order.node, order.pid) for active in running):
        raise RequestError(f"process {order.pid} is being traced already")
    collector.link(order.node)
    try:
        trace = Trace(order)
    except OSError as error:
        raise RequestError(f"no file can be made for it: {error.strerror}") from error
    running.append(trace)
    trace.start(collector, running.remove)


def cancel(node: str, pid: int, collector: Collector, running: list[Trace]) -> None:
    """End the trace of a process early."""
    for trace in running:
        if (trace.node, trace.pid) == (node, pid) and trace.request_id is not None:
            collector.link(node).cancel(trace.request_id)
