"""The engine in a process of its own, for many nodes.

One thread of Python runs at a time, and a thousand connections that are opened within a second need
it for each system call, while another thread reads the messages of nodes. So the engine gets an
interpreter, and a CPU, of its own; it loads only itself. Orders and events pass through pipes: a
header, and as many bytes as the header says. Both ends are the same version of hangtop.

The process ends with hangtop, and so do its connections, because its standard input ends. If it
ends earlier, all connections are closed, and new ones get a new process.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import queue
import resource
import sys
import threading
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

import hangtop_probe
from hangtop_core import version
from hangtop_core.attach.connect.child import Child
from hangtop_core.attach.connect.engine import (
    MAX_UNREAD,
    Closed,
    Engine,
    Errors,
    Event,
    Lines,
    PipeEngine,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

MANY = 64
"""Maximum number of connections that run on a thread; for more, the engine gets a process."""
ENGINES = 2
"""Threads of that process, each with connections of its own: starting a child blocks a thread until
the child has executed its program, which takes the kernel half a millisecond or more."""
DESCRIPTORS = 65536
"""Open files allowed to both processes, as far as the machine permits: the engine's has three for
each connection, hangtop's has one. Many shells allow 1,024."""

_HEAD = Struct("<cIQ")
"""Type of the frame, connection number, and number of bytes that follow."""
_READ = 256 * 1024
_WRITE = 64 * 1024
"""Bytes of events from which they are written without waiting for more: what a pipe holds."""
_CREDIT = MAX_UNREAD // 8
"""Consumed bytes of a connection from which they are reported."""
_MOST = 1 << 30
"""Maximum bytes of one order or event; larger ones are errors."""
_CODE = """\
import sys
sys.path[:0] = sys.argv[1:]
from hangtop_core.attach.connect import apart
apart.serve()
"""
_ENDED = b"hangtop's own process that holds the connections has ended"


def engine(sink: Callable[[Event], None], connections: int) -> Engine:
    """Return the engine for so many connections; see `PipeEngine` for ``sink``."""
    apart = connections > MANY and bool(sys.executable)
    return ApartEngine(sink) if apart else PipeEngine(sink)


def allow_descriptors() -> None:
    """Let this process open `DESCRIPTORS` files, or as many as the machine permits."""
    now, maximum = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = DESCRIPTORS if maximum == resource.RLIM_INFINITY else min(DESCRIPTORS, maximum)
    if now != resource.RLIM_INFINITY and now < enough:
        resource.setrlimit(resource.RLIMIT_NOFILE, (enough, maximum))


class ApartEngine:
    """`Engine` that forwards everything to a `PipeEngine` in another process."""

    def __init__(self, sink: Callable[[Event], None]) -> None:
        """``sink`` gets every event, on a thread of this class; it must not block or raise."""
        self._sink = sink
        self._lock = threading.Lock()
        self._process: _EngineProcess | None = None
        self._last = 0
        self._open: set[int] = set()
        self._pids: dict[int, int] = {}
        self._credit: dict[int, int] = {}
        self._rest = 0.0
        self._stopped = False

    def start(self) -> None:
        """Start the process, which loads meanwhile."""
        allow_descriptors()  # each ssh has a log here: see `ssh.OwnWords`
        with self._lock, contextlib.suppress(OSError):  # reported by the first connection
            self._running_process()

    def stop(self, timeout: float = 5.0) -> None:
        """Kill every connection, and end the process."""
        with self._lock:
            self._stopped = True
            process = self._process
        if process is not None:
            process.end(timeout)

    def open(self, node: str, argv: Sequence[str], errors: bool = False) -> int:
        """Start ``argv`` and return its number; a start that fails is a `Closed` event."""
        with self._lock:
            self._last += 1
            conn = self._last
            if not self._stopped:
                self._open.add(conn)
                order = json.dumps([node, *map(os.fsdecode, argv)]).encode()
                try:
                    self._running_process().order(b"E" if errors else b"O", conn, order)
                except OSError as error:
                    self._unstarted(conn, error)
        return conn

    def write(self, conn: int, data: bytes) -> None:
        """Write to the child's standard input."""
        self._order(b"W", conn, data)

    def close_input(self, conn: int) -> None:
        """End the child's standard input."""
        self._order(b"C", conn)

    def interrupt(self, conn: int) -> None:
        """Send the child alone a SIGINT."""
        self._order(b"I", conn)

    def kill(self, conn: int) -> None:
        """Kill the child and all of its session."""
        self._order(b"K", conn)

    def consumed(self, conn: int, size: int) -> None:
        """Note that ``size`` bytes of lines were handled."""
        self._credit[conn] = credit = self._credit.get(conn, 0) + size
        if credit >= _CREDIT:
            self._credit[conn] = 0
            self._order(b"D", conn, b"%d" % credit)

    def pid(self, conn: int | None) -> int | None:
        """Return the pid of the child while it exists."""
        return self._pids.get(conn) if conn is not None else None

    def rest(self, seconds: float) -> None:
        """Deliver events up to so many seconds later, all of them at once."""
        if seconds != self._rest:
            self._rest = seconds
            self._order(b"R", 0, b"%f" % seconds)

    def _order(self, what: bytes, conn: int, data: bytes = b"") -> None:
        with self._lock:
            if self._process is not None and (conn in self._open or not conn):
                self._process.order(what, conn, data)

    def _running_process(self) -> _EngineProcess:
        if self._process is None:
            self._process = _EngineProcess(self._came, self._ended)
            self._rest = 0.0
        return self._process

    def _unstarted(self, conn: int, error: OSError) -> None:
        self._open.discard(conn)
        reason = f"{sys.executable}: {error.strerror}"
        self._sink(Closed(conn, None, reason.encode(), error.errno or errno.EIO))

    def _came(self, what: bytes, conn: int, data: bytes) -> None:
        """Handle an event, on the thread that reads them."""
        if what == b"P":
            self._pids[conn] = int(data)
        elif what == b"X":
            code, unstarted, stderr = json.loads(data)
            self._close(conn, Closed(conn, code, os.fsencode(stderr), unstarted))
        elif conn in self._open:
            kind = Lines if what == b"L" else Errors
            self._sink(kind(conn, data.split(b"\n"), len(data) + 1))

    def _ended(self, process: _EngineProcess) -> None:
        """Close the open connections: their process has ended."""
        with self._lock:
            if self._process is process:
                self._process = None
            left = sorted(self._open)
        for conn in left:
            self._close(conn, Closed(conn, None, _ENDED))

    def _close(self, conn: int, closed: Closed) -> None:
        with self._lock:
            if conn not in self._open:
                return
            self._open.discard(conn)
            self._pids.pop(conn, None)
            self._credit.pop(conn, None)
        self._sink(closed)


class _EngineProcess:
    """A process with an engine in it, a thread that writes to it, and one that reads."""

    def __init__(
        self, came: Callable[[bytes, int, bytes], None], ended: Callable[[_EngineProcess], None]
    ) -> None:
        self._came, self._ended = came, ended
        folders = {
            str(Path(str(module.__file__)).parents[1]) for module in (version, hangtop_probe)
        }
        self._child = Child([sys.executable, "-ISc", _CODE, *sorted(folders)])
        os.close(self._child.stderr)  # its messages do not belong on the screen
        for fd in (self._child.stdin, self._child.stdout):
            os.set_blocking(fd, True)
        self._orders: queue.SimpleQueue[tuple[bytes, bytes] | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="hangtop-events", daemon=True)
        for thread in (
            threading.Thread(target=self._write, name="hangtop-orders", daemon=True),
            self._reader,
        ):
            thread.start()

    def order(self, what: bytes, conn: int, data: bytes) -> None:
        """Queue an order to be written, without waiting."""
        self._orders.put((_HEAD.pack(what, conn, len(data)), data))

    def end(self, timeout: float) -> None:
        """Let the process kill all connections and end, or kill it."""
        self._orders.put(None)
        self._reader.join(timeout)
        if self._reader.is_alive():
            self._child.end(at_once=True)
            self._reader.join(timeout)

    def _write(self) -> None:
        # If the process has ended, the reader reports it.
        with contextlib.suppress(OSError), open(self._child.stdin, "wb") as stdin:
            while (order := self._orders.get()) is not None:
                stdin.writelines(order)
                if self._orders.empty():
                    stdin.flush()

    def _read(self) -> None:
        # Anything but an event ends it: a new process is better than an endless wait.
        with contextlib.suppress(ValueError, TypeError):
            for what, conn, data in _frames(self._child.stdout):
                self._came(what, conn, data)
        os.close(self._child.stdout)
        self._orders.put(None)
        self._child.end()
        self._ended(self)


class _Frame(NamedTuple):
    what: bytes
    conn: int
    data: bytes


def _frames(fd: int) -> Iterator[_Frame]:
    """Yield frames until the end; raise `ValueError` for a frame that is too long."""
    held = bytearray()
    while piece := os.read(fd, _READ):
        held += piece
        at = 0
        while len(held) - at >= _HEAD.size:
            what, conn, size = _HEAD.unpack_from(held, at)
            if size > _MOST:
                raise ValueError(size)
            if len(held) - at - _HEAD.size < size:
                break
            at += _HEAD.size + size
            yield _Frame(what, conn, bytes(held[at - size : at]))
        del held[:at]


class _ServedEngine(PipeEngine):
    """An engine within the process."""

    output_lock = threading.Lock()

    def __init__(self) -> None:
        super().__init__(self.tell)
        self._unsaid = bytearray()

    def open_as(self, conn: int, node: str, argv: list[str], errors: bool) -> None:
        """Start ``argv`` under a number that was assigned before."""
        self._order("open", conn, (node, argv, errors))

    def tell(self, event: Event) -> None:
        """Write an event."""
        if isinstance(event, Closed):
            ending = [event.code, event.unstarted, os.fsdecode(event.stderr)]
            self._say(b"X", event.conn, json.dumps(ending).encode())
        else:
            what = b"L" if isinstance(event, Lines) else b"E"
            self._say(what, event.conn, b"\n".join(event.lines))

    def _open(self, conn: int, node: str, argv: list[str], errors: bool) -> None:
        super()._open(conn, node, argv, errors)
        if pid := self.pid(conn):
            self._say(b"P", conn, b"%d" % pid)

    def _say(self, what: bytes, conn: int, data: bytes) -> None:
        self._unsaid += _HEAD.pack(what, conn, len(data)) + data
        if len(self._unsaid) >= _WRITE:
            self._handed_out()

    def _handed_out(self) -> None:
        # All at once: each write wakes the other end, and takes the interpreter from its other
        # work.
        whole, self._unsaid = memoryview(self._unsaid), bytearray()
        # If the reader is gone, orders end, too.
        with self.output_lock, contextlib.suppress(BrokenPipeError):
            while whole:
                whole = whole[os.write(1, whole) :]


def serve() -> None:
    """Run the engine's process: orders on standard input, events on standard output."""
    allow_descriptors()
    engines = [_ServedEngine() for _ in range(ENGINES)]
    for engine in engines:
        engine.start()
    for what, conn, data in _frames(0):
        if what == b"R":
            for engine in engines:
                engine.rest(float(data))
        else:
            _obey(engines[conn % ENGINES], what, conn, data)
    for engine in engines:
        engine.stop()


def _obey(engine: _ServedEngine, what: bytes, conn: int, data: bytes) -> None:
    if what in (b"O", b"E"):
        node, *argv = json.loads(data)
        engine.open_as(conn, node, argv, what == b"E")
    elif what == b"W":
        engine.write(conn, data)
    elif what == b"D":
        engine.consumed(conn, int(data))
    elif what == b"C":
        engine.close_input(conn)
    elif what == b"I":
        engine.interrupt(conn)
    elif what == b"K":
        engine.kill(conn)
