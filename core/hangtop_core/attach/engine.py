"""The narrow seam to whatever runs connections: `open / write / close_input / kill`, lines back.

`ClusterShellEngine` is the one implementation: ClusterShell's Task in one thread of its own, one
ExecWorker per connection. What ClusterShell 1.10 does by itself and long-lived connections cannot
bear is taken over here, with its reason:

* a Task queues at most 100 messages and blocks the sender beyond: we keep our own queue and send
  one wake-up, and workers are only ever scheduled inside the task's thread;
* a fanout below the number of long-lived workers starves the rest: ours are unlimited;
* commands are shell text with % patterns: our children are started from an argv list;
* output is kept in a MsgTree for ever, lines are also cut at a bare carriage return, and neither
  a line nor what nobody has read yet has a bound: reading is ours, with limits and a pause;
* closing waits for the child without limit: ours is killed after a moment.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ClusterShell.Event import EventHandler
from ClusterShell.Task import task_self
from ClusterShell.Worker.EngineClient import EngineClientEOF
from ClusterShell.Worker.Exec import ExecClient, ExecWorker
from ClusterShell.Worker.Worker import FANOUT_UNLIMITED

from hangtop_core.attach.child import Child
from hangtop_core.attach.lines import LineCutter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

log = logging.getLogger(__name__)

_MAKING_TASKS = threading.Lock()
"""ClusterShell imports what a task may need with the first one, and not for two at a time."""
# A broken pipe is news for us, not for the terminal that Python's last-resort handler writes to.
logging.getLogger("ClusterShell").addHandler(logging.NullHandler())

READ_SIZE = 256 * 1024
MAX_UNREAD = 8 * 1024 * 1024
"""Bytes of one connection that may wait for their reader before reading from it is paused."""
MAX_STDERR = 16 * 1024
"""Bytes of standard error kept: the last ones, where programs say why they give up."""


class Lines(NamedTuple):
    """Whole lines that arrived on standard output, without their newlines."""

    conn: int
    lines: list[bytes]
    size: int
    """Bytes to hand back with `Engine.consumed` once they are dealt with."""


class Errors(NamedTuple):
    """Whole lines of standard error as they arrive, of a connection that was opened so."""

    conn: int
    lines: list[bytes]
    size: int
    """As that of `Lines`."""


class Closed(NamedTuple):
    """A connection is over."""

    conn: int
    code: int | None
    """Exit status, negative for a signal; None when it could not be had."""
    stderr: bytes
    unstarted: int | None = None
    """Error number with which starting the child failed on this machine; there was none then."""


Event = Lines | Errors | Closed


class Engine(Protocol):
    """Runs one child process per connection and reports what they say.

    All methods may be called from any thread and return at once. Events of one connection reach
    the sink in order, on the engine's thread; `Closed` is the last one of a connection.
    """

    def start(self) -> None:
        """Start the engine's thread."""

    def stop(self, timeout: float = 5.0) -> None:
        """Kill every connection and end the thread. May be called twice."""

    def open(self, node: str, argv: Sequence[str], errors: bool = False) -> int:
        """Start ``argv`` for ``node`` and return the connection's number.

        With ``errors``, lines of standard error are reported as they arrive, too.
        """

    def write(self, conn: int, data: bytes) -> None:
        """Write to the child's standard input; dropped when the connection is over."""

    def close_input(self, conn: int) -> None:
        """End the child's standard input, once all that was written has gone out."""

    def interrupt(self, conn: int) -> None:
        """Send the child alone a SIGINT, for one that ends in order on it."""

    def kill(self, conn: int) -> None:
        """Kill the child and all of its session; `Closed` follows."""

    def consumed(self, conn: int, size: int) -> None:
        """Say that ``size`` bytes of lines were dealt with, so that more may be read."""


class _Client(ExecClient):  # type: ignore[misc]  # ClusterShell has no annotations
    """One child process in ClusterShell's loop, with our own reading and closing."""

    def _start(self) -> _Client:
        child: Child = self.worker.child
        worker = self.worker
        self.streams.set_reader(worker.SNAME_STDOUT, child.stdout)
        # Standard error alone keeps nothing alive: a grandchild may hold it open for long.
        self.streams.set_reader(worker.SNAME_STDERR, child.stderr, retain=False)
        self.streams.set_writer(worker.SNAME_STDIN, child.stdin, retain=False)
        return self

    def _handle_read(self, sname: str) -> None:
        data = os.read(self.streams[sname].fd, READ_SIZE)
        if not data:
            raise EngineClientEOF
        worker = self.worker
        take = worker.add_stderr if sname == worker.SNAME_STDERR else worker.add_stdout
        if take(data):
            self._set_reading(sname)

    def _flush_read(self, sname: str) -> None:
        """A line that never got its newline is not handed out: it is not whole."""

    def _close(self, abort: bool, timeout: bool) -> None:
        worker = self.worker
        stderr = self.streams.get(worker.SNAME_STDERR)
        if stderr is not None and stderr.fd is not None:
            worker.add_stderr(_drain(stderr.fd))
        self.streams.clear()
        self.invalidate()
        worker.finish(worker.child.end(at_once=abort))


class _Connection(ExecWorker):  # type: ignore[misc]  # ClusterShell has no annotations
    """One connection: its child, its line cutter and how much of it waits to be read."""

    SHELL_CLASS = _Client

    def __init__(
        self, conn: int, child: Child, errors: bool, sink: Callable[[Event], None]
    ) -> None:
        self.conn = conn
        self.child = child
        self.unread = 0
        self.paused = False
        self._sink = sink
        self._cutter = LineCutter()
        self._error_cutter = LineCutter() if errors else None
        self._stderr = b""
        # The key names the client inside ClusterShell only. Node names never get there: NodeSet
        # would expand brackets and look up groups in them.
        super().__init__(f"c{conn}", None, command="(argv)", stderr=True)
        self._fanout = FANOUT_UNLIMITED
        self._update_task_rc = False

    def add_stdout(self, data: bytes) -> bool:
        """Hand out the lines that ``data`` completes; say whether to read on."""
        return self._hand_out(Lines, self._cutter.feed(data))

    def add_stderr(self, data: bytes) -> bool:
        """Keep the last of it, and hand out its lines where that is wanted."""
        self._stderr = (self._stderr + data)[-MAX_STDERR:]
        if self._error_cutter is None:
            return True
        return self._hand_out(Errors, self._error_cutter.feed(data))

    def _hand_out(self, kind: type[Lines | Errors], lines: list[bytes]) -> bool:
        if lines:
            size = sum(map(len, lines)) + len(lines)
            self.unread += size
            self._sink(kind(self.conn, lines, size))
        self.paused = self.unread > MAX_UNREAD
        return not self.paused

    def consumed(self, size: int) -> None:
        self.unread -= size
        if self.paused and self.unread <= MAX_UNREAD // 2:
            self.paused = False
            for client in self._clients:
                for sname in (self.SNAME_STDOUT, self.SNAME_STDERR):
                    if sname in client.streams:
                        client._set_reading(sname)

    def finish(self, code: int | None) -> None:
        self._sink(Closed(self.conn, code, self._stderr))


def _drain(fd: int) -> bytes:
    try:
        return os.read(fd, MAX_STDERR)
    except OSError:
        return b""


class ClusterShellEngine:
    """`Engine` on ClusterShell, flat: one child on this machine per connection."""

    def __init__(self, sink: Callable[[Event], None]) -> None:
        """``sink`` gets every event, on the engine's thread; it must not block or raise."""
        self._sink = sink
        self._orders: deque[tuple[str, int, Any]] = deque()
        self._lock = threading.Lock()
        self._woken = False
        self._port: Any = None
        self._task: Any = None
        self._connections: dict[int, _Connection] = {}
        self._last = 0
        self._stopping = False
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="hangtop-engine", daemon=True)

    def start(self) -> None:
        """Start the engine's thread."""
        self._thread.start()
        self._ready.wait(10)

    def stop(self, timeout: float = 5.0) -> None:
        """Kill every connection and end the thread."""
        if self._thread.ident is None or not self._thread.is_alive():
            return
        self._order("stop", 0)
        self._thread.join(timeout)

    def open(self, node: str, argv: Sequence[str], errors: bool = False) -> int:
        """Start ``argv`` and return its number; a start that fails is a `Closed` event."""
        with self._lock:
            self._last += 1
            conn = self._last
        self._order("open", conn, (node, list(argv), errors))
        return conn

    def write(self, conn: int, data: bytes) -> None:
        """Write to the child's standard input."""
        self._order("write", conn, data)

    def close_input(self, conn: int) -> None:
        """End the child's standard input."""
        self._order("close", conn)

    def interrupt(self, conn: int) -> None:
        """Send the child alone a SIGINT."""
        self._order("interrupt", conn)

    def kill(self, conn: int) -> None:
        """Kill the child and all of its session."""
        self._order("kill", conn)

    def consumed(self, conn: int, size: int) -> None:
        """Say that ``size`` bytes of lines were dealt with."""
        self._order("consumed", conn, size)

    def _order(self, what: str, conn: int, value: Any = None) -> None:
        with self._lock:
            self._orders.append((what, conn, value))
            # Credit alone never needs the loop's attention at once, unless reading is paused.
            connection = self._connections.get(conn)
            if what == "consumed" and not (connection and connection.paused):
                return
            wake = not self._woken and self._port is not None
            self._woken = self._woken or wake
        if wake:
            self._port.msg_send(None)

    def _serve(self) -> None:
        """Run the task; begin a new one should ClusterShell's loop ever fail."""
        while not self._stopping:
            try:
                self._run_task()
            except Exception:
                log.exception("the engine's loop failed and is started again")
                if self._task is None:
                    return  # nothing was begun that could be begun anew
                self._task.abort(kill=True)
            lost = list(self._connections.values())
            self._connections.clear()
            for connection in lost:
                connection.finish(connection.child.end(at_once=True))

    def _run_task(self) -> None:
        with _MAKING_TASKS:
            self._task = task = task_self()
        task._engine.reg_clifds = _Registered()
        with self._lock:
            self._port = task.port(_Wake(self._obey))
            self._woken = bool(self._orders)
        if self._woken:
            self._port.msg_send(None)
        self._ready.set()
        try:
            task.resume()
        finally:
            with self._lock:
                self._port = None

    def _obey(self) -> None:
        with self._lock:
            orders, self._orders = self._orders, deque()
            self._woken = False
        for what, conn, value in orders:
            if what == "stop":
                self._stopping = True
                self._task.abort(kill=True)
            try:
                self._do(what, conn, value)
            except Exception:
                log.exception("%s of connection %d failed", what, conn)

    def _do(self, what: str, conn: int, value: Any) -> None:
        if what == "open":
            self._open(conn, *value)
            return
        connection = self._connections.get(conn)
        if connection is None:
            return
        if what == "write":
            connection.write(value)
        elif what == "close":
            connection.set_write_eof()
        elif what == "interrupt":
            connection.child.interrupt()
        elif what == "kill":
            connection.abort()
        else:
            connection.consumed(value)

    def _open(self, conn: int, node: str, argv: list[str], errors: bool) -> None:
        try:
            child = Child(argv)
        except OSError as error:
            reason = f"{argv[0]}: {error.strerror}"
            log.warning("cannot start the connection to %s: %s", node, reason)
            self._sink(Closed(conn, None, reason.encode(), error.errno or errno.EIO))
            return
        connection = _Connection(conn, child, errors, self._closing_sink)
        self._connections[conn] = connection
        self._task.schedule(connection)

    def _closing_sink(self, event: Event) -> None:
        if isinstance(event, Closed):
            self._connections.pop(event.conn, None)
        self._sink(event)


class _Registered(dict):  # type: ignore[type-arg]
    """Streams by descriptor. Each round of ClusterShell's loop makes a text of all its keys, for a
    log that nobody keeps: with a thousand nodes that were two fifths of what the loop took."""

    def keys(self) -> Any:
        """How many there are."""
        return len(self)


class _Wake(EventHandler):  # type: ignore[misc]  # ClusterShell has no annotations
    """Calls back inside the task's thread when the port gets its message."""

    def __init__(self, callback: Callable[[], None]) -> None:
        super().__init__()
        self._callback = callback

    def ev_msg(self, port: Any, msg: Any) -> None:
        """Handle the wake-up."""
        self._callback()
