"""The probe's side of the connection: reading requests, answering them, ending with it.

The main thread reads stdin; one thread writes, small answers before bulk; each request is
answered on its own thread. The probe ends when stdin ends, when nothing came for a minute, or
when its output is closed.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Mapping, NamedTuple, Optional

from . import wire
from .requests import Cancelled, Message, Refused, Request, failure

SILENCE = 60.0
"""Seconds without any message from the head after which the probe ends."""
TAKEN_S = 60
"""Seconds after which a request that is not even taken ends the probe: without memory for a thread
`Thread.start` may wait for ever (CPython 3.11), and the end of stdin would go unread."""
MAX_REQUESTS = 32
UNLIMITED = 1 << 60
"""Credit for pieces where the head cannot grant more."""
UNENDING = "pdsh could not end a trace: it sends nothing to a probe that runs"
"""Why a pushed probe cannot trace."""

Handler = Callable[[Request], Optional[Message]]


class Push(NamedTuple):
    """All requests for a probe that cannot be sent anything later, as over pdsh."""

    requests: Dict[str, List[Message]]
    """Requests by host name, as in `hello`; those under `*` are for every node."""
    seconds: float
    """Lifetime of the probe, since the head cannot end it."""
    number: int
    """First number of cut messages, above those that earlier runs may still send."""
    max_line: int
    hello: bool
    """Whether it says hello; a run that answers a few requests beside another one does not."""


class Writer:
    """Sends messages in two classes; urgent ones may overtake the parts of a cut message."""

    def __init__(
        self,
        fd: int,
        broken: Callable[[], None],
        max_line: int = wire.MAX_LINE,
        number: int = 0,
    ) -> None:
        self._fd = fd
        self._max_line = max_line
        self._broken = broken
        self._urgent: Deque[List[bytes]] = deque()
        self._bulk: Deque[List[bytes]] = deque()
        self._ready = threading.Condition()
        self._number = number
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def send(self, message: Message, urgent: bool) -> None:
        """Queue a message; it is encoded on the caller's thread, and delays no other message."""
        with self._ready:
            self._number += 1
            number = self._number
        lines = wire.encode(message, number, self._max_line)
        with self._ready:
            (self._urgent if urgent else self._bulk).append(lines)
            self._ready.notify()

    def _next(self) -> Optional[bytes]:
        with self._ready:
            self._ready.wait_for(lambda: self._urgent or self._bulk or self._closing)
            for lines in (self._urgent, self._bulk):
                if lines:
                    line = lines[0].pop(0)
                    if not lines[0]:
                        lines.popleft()
                    return line
            return None

    def _run(self) -> None:
        while True:
            line = self._next()
            if line is None:
                return
            try:
                view = memoryview(line)
                while view:
                    view = view[os.write(self._fd, view) :]
            except OSError:
                self._broken()
                return

    def close(self, seconds: float) -> None:
        """Write what is queued, for at most ``seconds``."""
        with self._ready:
            self._closing = True
            self._ready.notify()
        self._thread.join(seconds)


def _no_alarm(_: int) -> None:
    """Set no time limit."""


class Server:
    """Reads requests from ``fd_in`` and answers on ``fd_out`` until the head disconnects."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        fd_in: int,
        fd_out: int,
        silence: float = SILENCE,
        max_line: int = wire.MAX_LINE,
        number: int = 0,
        alarm: Callable[[int], object] = _no_alarm,
    ) -> None:
        """``alarm`` ends the process after so many seconds: `signal.alarm` outside of tests."""
        self._alarm = alarm
        self._handlers = handlers
        self._in, self._out = fd_in, fd_out
        self._silence = silence
        self._wake_out, self._wake_in = os.pipe()
        self._requests: Dict[int, Request] = {}
        self._threads: List[threading.Thread] = []
        self._lock = threading.Lock()
        self._reader = wire.Reader()
        self.writer = Writer(fd_out, self.stop, max_line, number)

    def stop(self) -> None:
        """Make `run` return, from any thread or a signal handler."""
        os.write(self._wake_in, b"x")

    def bear_silence(self, seconds: float) -> None:
        """Set the seconds without any message from the head after which to end."""
        self._silence = seconds

    def run(self) -> None:
        """Answer requests until the connection ends, then cancel those under way."""
        rest = b""
        while True:
            ready, _, _ = select.select([self._in, self._wake_out], [], [], self._silence)
            if not ready or self._wake_out in ready:
                break
            data = os.read(self._in, 65536)
            if not data:
                break
            lines, rest = wire.split_lines(rest + data)
            if len(rest) > wire.MAX_LINE:
                rest = b""
            self._alarm(TAKEN_S)
            for line in lines:
                self._line(line)
            self._alarm(0)
        self._cancel_all()

    def push(self, order: Push) -> None:
        """Answer the requests of ``order`` until all are done, time is up, or output is closed.

        A run that said hello stays until then, since other runs rely on it.
        """
        deadline = time.monotonic() + order.seconds
        asked = order.requests.get(socket.gethostname(), [])
        for message in [*order.requests.get("*", []), *asked]:
            try:
                self._take(message)
            except Refused as error:
                self._say_error(0, error.kind, str(error))
        for request in self._under_way():
            request.grant(UNLIMITED)
        over = select.poll()
        over.register(self._wake_out, select.POLLIN)
        over.register(self._out, 0)  # reports in any case that the other end is closed
        while time.monotonic() < deadline and not over.poll(200):
            if not (order.hello or self._under_way()):
                break
        self._cancel_all()

    def _under_way(self) -> List[Request]:
        with self._lock:
            return list(self._requests.values())

    def _cancel_all(self) -> None:
        for request in self._under_way():
            request.cancel()

    def wait_answered(self, seconds: float) -> None:
        """Wait for cancelled requests to clean up: they make their targets run again."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _line(self, line: bytes) -> None:
        try:
            message = self._reader.feed(line)
            if message is not None:
                self._take(message)
        except (wire.WireError, Refused) as error:
            kind = error.kind if isinstance(error, Refused) else "wire"
            self._say_error(0, kind, str(error))

    def _take(self, message: Message) -> None:
        ident, op = message.get("id"), message.get("op")
        if not isinstance(ident, int) or isinstance(ident, bool) or not isinstance(op, str):
            raise Refused("error", "a request needs a number `id` and a text `op`")
        if op == "ping":
            self.writer.send({"id": ident, "end": {"clock": time.time()}}, True)
        elif op in ("credit", "cancel"):
            self._control(ident, op, message)
        elif op not in self._handlers:
            self._say_error(ident, "unsupported", "this probe has no request %r" % op[:40])
        else:
            self._open(ident, message)

    def _control(self, ident: int, op: str, message: Message) -> None:
        with self._lock:
            request = self._requests.get(ident)
        n = message.get("n")
        if request is not None and op == "cancel":
            request.cancel()
        elif request is not None and isinstance(n, int) and n > 0:
            request.grant(n)

    def _open(self, ident: int, message: Message) -> None:
        with self._lock:
            known = self._requests.get(ident)
            full = len(self._requests) >= MAX_REQUESTS
            if known is None and not full:
                request = Request(message, self.writer.send)
                self._requests[ident] = request
        if known is not None:
            if message.get("resync") and known.op == message["op"]:
                known.message["resync"] = True
            return
        if full:
            self._say_error(ident, "error", "%d requests are under way" % MAX_REQUESTS)
            return
        name = "%s %d" % (request.op, ident)
        thread = threading.Thread(target=self._answer, args=(request,), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no more threads may be allowed
            with self._lock:
                del self._requests[ident]
            self._say_error(ident, "error", describe(error))
            return
        self._threads = [t for t in self._threads if t.is_alive()] + [thread]

    def _answer(self, request: Request) -> None:
        try:
            request.end(self._handlers[request.op](request))
        except Cancelled:
            request.end({"cancelled": True})
        except Refused as refused:
            request.fail(refused.message())
        except Exception as error:  # every error is an answer, never a traceback
            request.fail(failure("error", describe(error)))
        finally:
            with self._lock:
                self._requests.pop(request.id, None)

    def _say_error(self, ident: int, kind: str, text: str) -> None:
        self.writer.send({"id": ident, "err": failure(kind, text)}, True)


def describe(error: BaseException) -> str:
    """Return an unexpected error and where it was raised, on one line."""
    trace = error.__traceback__
    where = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        where = "%s:%d" % (os.path.basename(code.co_filename), trace.tb_lineno)
        trace = trace.tb_next
    return "%s: %s (%s)" % (type(error).__name__, str(error)[:300], where)


def take_over_output() -> int:
    """Keep the real stdout for messages; let everything else write to nowhere.

    Return the descriptor to write messages to, which children do not inherit.
    """
    fd = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.close(null)
    os.set_inheritable(fd, False)
    return fd


def end_on_signals(stop: Callable[[], None]) -> None:
    """End in order on SIGTERM and SIGHUP; leave SIGINT to the head, who closes stdin."""

    def handler(number: int, frame: Any) -> None:
        stop()

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, handler)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
