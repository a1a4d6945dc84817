"""torch's C++ worker server in a rank: finding it, and asking it over HTTP.

`_WorkerServer` (torch 2.4 on) is started by `torch.distributed.elastic.control_plane.worker_main`
when TORCH_WORKER_SERVER_SOCKET is set, by `hangtop run`, and, on a TCP port, by
`torch.distributed.debug.start_debug_server` (torch 2.10 on). Its threads need no GIL, so it answers
also while the rank hangs and holds the GIL.

A unix socket is asked when the rank itself listens on it. A TCP port is asked only when the rank
has published it in the job's store and listens on it: what else a rank listens on is not known
to speak HTTP.
"""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Dict, List, NamedTuple, Optional, Set, Tuple, Union

from ..net.sockets import Socket, Sockets, open_inodes
from ..proc import procfs

if TYPE_CHECKING:
    Address = Union[str, Tuple[str, int]]
    """Path of a unix socket, `\\0name` of an abstract one, or host and port."""

THREAD = "pt_workerserver"
MAX_ANSWER = 64 << 20
_MAX_SIZE_LINE = 1024


class NoHandler(ValueError):
    """The server does not know what it was asked: HTTP status 404."""


class Listening(NamedTuple):
    """What a process listens on."""

    unix: List[Socket]
    ports: Set[int]


def listening(pid: int) -> Listening:
    """Return what a process itself listens on.

    Raises:
        OSError: its descriptors may not be read.
    """
    inodes = open_inodes(pid)
    found = Listening([], set())
    for entry in Sockets(pid).by_inode.values():
        if entry.inode not in inodes or entry.state != "LISTEN" or not entry.local:
            continue
        if entry.family == "unix":
            found.unix.append(entry)
        else:
            port = procfs.decimal(entry.local.rpartition(":")[2])
            found.ports.update([port] if port else [])
    return found


def reachable(pid: int, path: str) -> str:
    """Return the address to connect to: `\\0name`, or the path as the process sees it."""
    if path.startswith("@"):
        return "\0" + path[1:]
    if path.startswith("/"):
        return path if procfs.shares(pid, "mnt") else "/proc/%d/root%s" % (pid, path)
    return "/proc/%d/cwd/%s" % (pid, path)


def post(address: Address, path: str, seconds: float) -> bytes:
    """POST to a HTTP server and return the body of its answer.

    Raises:
        NoHandler: status 404.
        socket.timeout: no whole answer within ``seconds`` in all.
        OSError, ValueError: anything else that went wrong.
    """
    deadline = time.monotonic() + seconds
    request = "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n" % path
    with _connect(address, seconds) as connection:
        connection.sendall((request + "Connection: close\r\n\r\n").encode("ascii"))
        data = bytearray()
        wanted: Optional[int] = None
        while wanted is None or len(data) < wanted:
            left = deadline - time.monotonic()
            if left <= 0:
                raise socket.timeout("timed out")
            connection.settimeout(left)
            part = connection.recv(1 << 20)
            if not part:
                break
            data += part
            if len(data) > MAX_ANSWER:
                raise ValueError("answer of more than %d bytes" % MAX_ANSWER)
            wanted = wanted or _wanted(data)
    return _body(bytes(data))


def _connect(address: Address, seconds: float) -> socket.socket:
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    if not isinstance(address, str) and ":" in address[0]:
        family = socket.AF_INET6
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.settimeout(seconds)
        connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection


def _headers(data: bytes) -> Tuple[bytes, Dict[str, str], bytes]:
    head, blank, body = data.partition(b"\r\n\r\n")
    if not blank:
        raise ValueError("no HTTP answer")
    status, _, rest = head.partition(b"\r\n")
    return status, {k.lower(): v for k, v in procfs.parse_pairs(rest).items()}, body


def _wanted(data: bytearray) -> Optional[int]:
    """Bytes of the whole answer, once its head has come and says so."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return None
    length = procfs.parse_int(_headers(bytes(data[: end + 4]))[1].get("content-length"))
    return end + 4 + length if length is not None and length >= 0 else None


def _body(data: bytes) -> bytes:
    status, headers, body = _headers(data)
    words = status.split()
    if words[1:2] == [b"404"]:
        raise NoHandler("answered 404")
    if words[1:2] != [b"200"]:
        raise ValueError("answered %s" % procfs.text(status)[:80])
    length = procfs.parse_int(headers.get("content-length"))
    if length is not None and len(body) < length:
        raise ValueError("cut answer")
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return _chunks(body)
    return body


def _chunks(body: bytes) -> bytes:
    parts, at = [], 0
    while at < len(body):
        end = body.find(b"\r\n", at, at + _MAX_SIZE_LINE)
        if end < 0:
            raise ValueError("no size of a chunk")
        length = int(body[at:end].split(b";")[0], 16)
        if length <= 0:
            break
        at = end + 2
        parts.append(body[at : at + length])
        at += length + 2
    return b"".join(parts)
