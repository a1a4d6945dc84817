"""The interface to whatever runs connections: `open / write / close_input / kill`, lines back.

`PipeEngine` implements it: one thread with one epoll loop for the pipes of all children. Each of a
thousand connections must be cheap: no task, and no object for each stream. For many, `apart` runs
it in a process of its own.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from hangtop_core.attach.connect.child import Child
from hangtop_core.attach.wire.lines import LineCutter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

log = logging.getLogger(__name__)

READ_SIZE = 64 * 1024
"""Bytes read at once: what a pipe holds."""
MAX_UNREAD = 8 * 1024 * 1024
"""Bytes of one connection that may wait for their reader before reading from it is paused."""
MAX_STDERR = 16 * 1024
"""Last bytes of standard error that are kept, where programs say why they give up."""


class Lines(NamedTuple):
    """Complete lines that arrived on standard output, without their newlines."""

    conn: int
    lines: list[bytes]
    size: int
    """Bytes to hand back with `Engine.consumed` once the lines are handled."""


class Errors(NamedTuple):
    """Complete lines of standard error as they arrive, of a connection opened with ``errors``."""

    conn: int
    lines: list[bytes]
    size: int
    """Bytes to hand back, as in `Lines`."""


class Closed(NamedTuple):
    """A connection is over."""

    conn: int
    code: int | None
    """Exit status, negative for a signal; None when unknown."""
    stderr: bytes
    unstarted: int | None = None
    """Error number of a failure to start the child on this machine; None if it was started."""


Event = Lines | Errors | Closed


class Engine(Protocol):
    """Runs one child process per connection and reports its output.

    All methods may be called from any thread and return at once. Events of one connection reach the
    sink in order, on the engine's thread; `Closed` is the last one of a connection.
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
        """Note that ``size`` bytes of lines were handled, so that more may be read."""

    def pid(self, conn: int | None) -> int | None:
        """Return the pid of the child while it exists."""

    def rest(self, seconds: float) -> None:
        """Deliver events up to so many seconds later, all of them at once.

        Of a thousand quiet nodes one sends a sign of life at any time: waking up for each costs ten
        times as much as reading it. Orders are still obeyed at once.
        """


class _Connection:
    """One child, its incomplete lines, and the data that wait to be written."""

    def __init__(self, conn: int, child: Child, errors: bool) -> None:
        self.conn, self.child = conn, child
        self.cutters = {child.stdout: LineCutter()}
        """Cutters of the streams whose lines are delivered."""
        if errors:
            self.cutters[child.stderr] = LineCutter()
        self.stderr = b""
        self.reading = [child.stdout, child.stderr]
        self.unread = 0
        self.paused = False
        self.unwritten = bytearray()
        self.writing: int | None = child.stdin
        """The input of the child; None once it was closed."""
        self.ends_input = False


class PipeEngine:
    """`Engine` on pipes, flat: one child on this machine per connection."""

    def __init__(self, sink: Callable[[Event], None]) -> None:
        """``sink`` gets every event, on the engine's thread; it must not block or raise."""
        self._sink = sink
        self._orders: deque[tuple[str, int, Any]] = deque()
        self._lock = threading.Lock()
        self._woken = False
        self._connections: dict[int, _Connection] = {}
        self._by_fd: dict[int, _Connection] = {}
        self._last = 0
        self._stopping = False
        self._rest = 0.0
        self._thread = threading.Thread(target=self._serve, name="hangtop-engine", daemon=True)

    def start(self) -> None:
        """Start the engine's thread."""
        self._epoll = select.epoll()
        self._wake = os.eventfd(1, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # for earlier orders
        self._epoll.register(self._wake, select.EPOLLIN)
        self._ordered = select.poll()
        self._ordered.register(self._wake, select.POLLIN)
        self._thread.start()

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
        """Note that ``size`` bytes of lines were handled."""
        self._order("consumed", conn, size)

    def pid(self, conn: int | None) -> int | None:
        """Return the pid of the child while it exists."""
        connection = self._connections.get(conn) if conn is not None else None
        return connection.child.pid if connection is not None else None

    def rest(self, seconds: float) -> None:
        """Deliver events up to so many seconds later, all of them at once."""
        sooner, self._rest = seconds < self._rest, seconds
        if sooner:
            self._order("wake", 0)

    def _order(self, what: str, conn: int, value: Any = None) -> None:
        with self._lock:
            if self._stopping:
                return
            self._orders.append((what, conn, value))
            # Credit alone never needs the loop's attention at once, unless reading is paused.
            connection = self._connections.get(conn)
            if what == "consumed" and not (connection and connection.paused):
                return
            if not self._woken and self._thread.ident is not None:
                self._woken = True
                os.eventfd_write(self._wake, 1)

    def _serve(self) -> None:
        """Move bytes and obey orders until one is to stop."""
        while not self._stopping:
            ready = self._epoll.poll()
            if self._rest and not self._ordered.poll(self._rest * 1000):
                ready = self._epoll.poll(0)
            for fd, _ in ready:
                if fd == self._wake:
                    os.eventfd_read(fd)
                # A connection closed in this round is no longer listed, and none is new.
                elif (connection := self._by_fd.get(fd)) is not None:
                    self._try("moving", connection.conn, fd)
            self._handed_out()
            with self._lock:
                orders, self._orders = self._orders, deque()
                self._woken = False
            for what, conn, value in orders:
                self._try(what, conn, value)
            self._handed_out()
        for connection in list(self._connections.values()):
            self._end(connection, at_once=True)
        self._handed_out()
        with self._lock:
            self._epoll.close()
            os.close(self._wake)

    def _handed_out(self) -> None:
        """Called on the engine's thread when the sink has got all present events."""

    def _try(self, what: str, conn: int, value: Any) -> None:
        """Obey an order; a failure does not affect the other connections."""
        try:
            self._obey(what, conn, value)
        except Exception:
            log.exception("%s of connection %d failed", what, conn)

    def _obey(self, what: str, conn: int, value: Any) -> None:
        if what == "stop":
            self._stopping = True
        elif what == "open":
            self._open(conn, *value)
        elif (connection := self._connections.get(conn)) is not None:
            if what == "moving":
                self._move(connection, value)
            elif what == "write":
                connection.unwritten += value
                self._flush(connection)
            elif what == "close":
                connection.ends_input = True
                self._flush(connection)
            elif what == "interrupt":
                connection.child.interrupt()
            elif what == "kill":
                self._end(connection, at_once=True)
            else:
                self._consume(connection, value)

    def _open(self, conn: int, node: str, argv: list[str], errors: bool) -> None:
        try:
            child = Child(argv)
        except OSError as error:
            reason = f"{argv[0]}: {error.strerror}"
            log.warning("cannot start the connection to %s: %s", node, reason)
            self._sink(Closed(conn, None, reason.encode(), error.errno or errno.EIO))
            return
        connection = self._connections[conn] = _Connection(conn, child, errors)
        for fd in connection.reading:
            self._listen(connection, fd, select.EPOLLIN)

    def _listen(self, connection: _Connection, fd: int, to: int) -> None:
        self._by_fd[fd] = connection
        self._epoll.register(fd, to)

    def _ignore(self, fd: int) -> None:
        if self._by_fd.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def _move(self, connection: _Connection, fd: int) -> None:
        """Read from a pipe or write to it, as it is ready."""
        if fd == connection.writing:
            self._flush(connection)
        elif data := _read(fd):
            self._take(connection, fd, data)
        elif data is not None and fd == connection.child.stdout:
            self._end(connection)
        elif data is not None:
            # The end of standard error ends nothing, nor keeps it alive: a grandchild may hold it
            # for long.
            connection.reading.remove(fd)
            self._close(fd)

    def _take(self, connection: _Connection, fd: int, data: bytes) -> None:
        """Deliver the lines that ``data`` completes; a line without a newline is incomplete."""
        is_error = fd == connection.child.stderr
        if is_error:
            connection.stderr = (connection.stderr + data)[-MAX_STDERR:]
        cutter = connection.cutters.get(fd)
        if cutter is None or not (lines := cutter.feed(data)):
            return
        size = sum(map(len, lines)) + len(lines)
        connection.unread += size
        self._sink((Errors if is_error else Lines)(connection.conn, lines, size))
        if connection.unread > MAX_UNREAD and not connection.paused:
            connection.paused = True
            for stream in connection.reading:
                self._ignore(stream)

    def _consume(self, connection: _Connection, size: int) -> None:
        connection.unread -= size
        if connection.paused and connection.unread <= MAX_UNREAD // 2:
            connection.paused = False
            for fd in connection.reading:
                self._listen(connection, fd, select.EPOLLIN)

    def _flush(self, connection: _Connection) -> None:
        """Write as much as the child accepts, and close its input once that is due."""
        fd = connection.writing
        if fd is None:
            return
        try:
            while connection.unwritten:
                del connection.unwritten[: os.write(fd, connection.unwritten)]
        except BlockingIOError:
            if fd not in self._by_fd:
                self._listen(connection, fd, select.EPOLLOUT)
            return
        except OSError as error:  # it reads no more; its output shows how it ends
            log.info("connection %d: %s", connection.conn, error)
            connection.ends_input = True
        if connection.ends_input:
            connection.writing = None
            connection.unwritten.clear()
            self._close(fd)
        else:
            self._ignore(fd)

    def _close(self, fd: int) -> None:
        self._ignore(fd)
        os.close(fd)

    def _end(self, connection: _Connection, at_once: bool = False) -> None:
        """Let the child end, or kill it, and report how it ended."""
        child = connection.child
        if child.stderr in connection.reading and (data := _read(child.stderr)):
            self._take(connection, child.stderr, data)
        for fd in connection.reading:
            self._close(fd)
        if connection.writing is not None:
            self._close(connection.writing)
        code = child.end(at_once)
        del self._connections[connection.conn]
        self._sink(Closed(connection.conn, code, connection.stderr))


def _read(fd: int) -> bytes | None:
    """Return the data in a pipe; empty at its end, None when there are none yet."""
    try:
        return os.read(fd, READ_SIZE)
    except BlockingIOError:
        return None
    except OSError:
        return b""
