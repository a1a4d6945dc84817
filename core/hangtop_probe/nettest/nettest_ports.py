"""Ports of this node: opening some for a moment, and reaching those of others.

hangtop opens no ports, but when a person asks for this very test: then on one address, for as long
as the request lasts, and whoever connects must know the token of the run, or is dropped unread.

A connection: the caller sends a nonce and its HMAC; the other side answers with its own HMAC, so
that both know whom they reached; then the caller sends 64 KiB, more than a way takes on which
large packets get lost, and is told when all of it is there.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import os
import queue
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from ..net import sockets
from ..proc import procfs
from ..secrets import mask
from ..wire.requests import Refused

if TYPE_CHECKING:
    from ..wire.requests import Message, Request

NONCE = 16
MAC = 32
LOAD = bytes(64 << 10)
ARRIVED = b"k"
MIN_LOAD = 500
"""Bytes that no packet of the load is smaller than."""
_ACKNOWLEDGED = 120
"""Where tcpi_bytes_acked is in `struct tcp_info` (include/uapi/linux/tcp.h), Linux 4.1."""
MAX_SECONDS = 600.0
MAX_CALLERS = 256
CALL_S = 10.0
"""Seconds a caller may take."""
AT_ONCE = 8
BACKLOG = 256
PIECE = 64
_WHY = {
    errno.ECONNREFUSED: "refused",
    errno.EHOSTUNREACH: "no-route",
    errno.ENETUNREACH: "no-route",
    errno.ETIMEDOUT: "timed-out",
    errno.ECONNRESET: "reset",
    errno.EPIPE: "reset",
    errno.EADDRNOTAVAIL: "no-address",
    errno.EPERM: "forbidden",
    errno.EACCES: "forbidden",
}


def mac(token: bytes, side: bytes, nonce: bytes) -> bytes:
    """Return what proves that a side knows the token."""
    return hmac.new(token, side + nonce, "sha256").digest()


def listen(request: Request, stop: threading.Event) -> Message:
    """Listen on ``ports`` (0: any) of ``address`` for ``seconds``, or until stopped or cancelled.

    The first piece has, for each port asked for, what was opened: {asked, port} or {asked, why,
    owner}. The end says how many callers did not know the token.
    """
    message = request.message
    address, token = str(message.get("address")), _token(message)
    deadline = time.monotonic() + min(float(message.get("seconds") or 10.0), MAX_SECONDS)
    opened: List[socket.socket] = []
    told: List[Dict[str, Any]] = []
    try:
        for asked in [int(port) for port in message.get("ports") or []][:8]:
            one = _open(address, asked, opened)
            told.append(dict(one, asked=asked))
        request.give({"opened": told})
        doors = [_Door(listener, token, deadline) for listener in opened]
        while time.monotonic() < deadline and not request.cancelled.is_set():
            if stop.wait(0.1):
                break
    finally:
        for listener in opened:
            # Wakes whoever is in accept(2), which closing alone does not.
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
    return {"strangers": sum(door.strangers for door in doors)}


def _open(address: str, port: int, opened: List[socket.socket]) -> Dict[str, Any]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # As torch's store does: only who listens holds a port, not what is left of connections.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        number = getattr(error, "errno", None)
        owner = _owner(port) if number == errno.EADDRINUSE else None
        return {"why": getattr(error, "strerror", None) or str(error), "owner": owner}
    opened.append(listener)
    return {"port": listener.getsockname()[1]}


def _owner(port: int) -> Optional[str]:
    """Say who listens on a port, as far as our rights go: `python train.py (pid 17)`."""
    inodes = {one.inode for one in sockets.listeners("/proc/net", str(port))}
    for pid in procfs.numbers(procfs.PROC):
        if inodes & sockets.own_inodes(pid):
            line = procfs.parse_cmdline(procfs.read("/proc/%d/cmdline" % pid) or b"")
            return "%s (pid %d)" % (" ".join(mask.mask_arguments(line))[:80] or "?", pid)
    return None


class _Door:
    """One listening socket, and a thread that lets callers in."""

    def __init__(self, listener: socket.socket, token: bytes, deadline: float) -> None:
        self.strangers = 0
        self._listener = listener
        self._token = token
        self._deadline = deadline
        self._inside = threading.Semaphore(MAX_CALLERS)
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while time.monotonic() < self._deadline:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return  # it was closed
            if not self._inside.acquire(blocking=False):
                caller.close()
                continue
            threading.Thread(target=self._serve, args=(caller,), daemon=True).start()

    def _serve(self, caller: socket.socket) -> None:
        try:
            with caller:
                caller.settimeout(CALL_S)
                said = _receive(caller, NONCE + MAC)
                nonce = said[:NONCE]
                if not hmac.compare_digest(said[NONCE:], mac(self._token, b"caller", nonce)):
                    self.strangers += 1
                    return
                caller.sendall(mac(self._token, b"called", nonce))
                _receive(caller, len(LOAD))
                caller.sendall(ARRIVED)
        except OSError:
            pass  # the caller says what it saw
        finally:
            self._inside.release()


def connect(request: Request) -> Message:
    """Connect to ``targets``, rows of an id, an address and a port, in this order.

    Pieces of rows {id, how, took}: ``how`` is ok, refused, timed-out, no-route, reset, stranger
    (somebody else answers), stalled (small packets pass, large ones do not), lossy (some of all
    sizes do), late (all do, but nobody answers), no-address, forbidden, not-tried, or an error;
    ``took`` are seconds.
    """
    message = request.message
    token, own = _token(message), message.get("source")
    limit = min(float(message.get("limit") or 2.0), 30.0)
    deadline = time.monotonic() + min(float(message.get("seconds") or 60.0), MAX_SECONDS)
    waiting: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
    rows = [row for row in message.get("targets") or [] if len(row) == 3]
    for row in rows:
        waiting.put(row)
    done: "queue.SimpleQueue[Dict[str, Any]]" = queue.SimpleQueue()

    def work() -> None:
        while not request.cancelled.is_set():
            try:
                ident, address, port = waiting.get_nowait()
            except queue.Empty:
                return
            began = time.monotonic()
            late = began > deadline
            how = "not-tried" if late else call(str(address), int(port), token, own, limit)
            done.put({"id": ident, "how": how, "took": round(time.monotonic() - began, 5)})

    for _ in range(min(AT_ONCE, len(rows))):
        threading.Thread(target=work, daemon=True).start()
    found: List[Dict[str, Any]] = []
    for _ in rows:
        found.append(_next(done, request))
        if len(found) >= PIECE:
            request.give({"calls": found})
            found = []
    if found:
        request.give({"calls": found})
    return {}


def _next(done: "queue.SimpleQueue[Dict[str, Any]]", request: Request) -> Dict[str, Any]:
    while True:
        request.check()
        try:
            return done.get(timeout=0.2)
        except queue.Empty:
            continue


def call(address: str, port: int, token: bytes, own: Optional[str], limit: float) -> str:
    """Connect to one port and say how that went; ``limit`` seconds for each part of it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    nonce = os.urandom(NONCE)
    passed = False
    with socket.socket(family, socket.SOCK_STREAM) as caller:
        caller.settimeout(limit)
        try:
            if own:
                caller.bind((own, 0))
            caller.connect((address, port))
            caller.sendall(nonce + mac(token, b"caller", nonce))
            if not hmac.compare_digest(_receive(caller, MAC), mac(token, b"called", nonce)):
                return "stranger"
            passed = True
            caller.sendall(LOAD)
            return "ok" if _receive(caller, 1) == ARRIVED else "stranger"
        except socket.timeout:
            return _held_up(caller) if passed else "timed-out"
        except _EndedError:
            return "reset" if passed else "stranger"
        except OSError as error:
            how = _WHY.get(error.errno or 0)
            return how or ("error: %s" % (error.strerror or error))[:100]


def _held_up(caller: socket.socket) -> str:
    """Say why a load gets no answer, by how much of it was acknowledged."""
    try:
        info = caller.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 128)
        (acknowledged,) = struct.unpack_from("=Q", info, _ACKNOWLEDGED)
    except (OSError, struct.error):
        return "stalled"
    arrived = acknowledged - NONCE - MAC
    return "late" if arrived >= len(LOAD) else "lossy" if arrived > MIN_LOAD else "stalled"


class _EndedError(OSError):
    """The other side closed the connection."""


def _receive(connection: socket.socket, count: int) -> bytes:
    """Read so many bytes, in the time of the whole."""
    parts = []
    limit = connection.gettimeout() or CALL_S
    until = time.monotonic() + limit
    while count:
        connection.settimeout(max(0.001, until - time.monotonic()))
        data = connection.recv(min(count, 1 << 16))
        if not data:
            raise _EndedError(0, "the other side closed the connection")
        parts.append(data)
        count -= len(data)
    connection.settimeout(limit)
    return b"".join(parts)


def _token(message: Message) -> bytes:
    token = message.get("token")
    if not isinstance(token, str) or len(token) < 32:
        raise Refused("error", "a test of ports needs a token")
    return token.encode("utf-8")
