"""Reading one key of a job's TCPStore, as any rank may: nothing is set, added or waited for.

The protocol is that of torch 2.10 to 2.15 (TCPStoreLibUvBackend.cpp, TCPStore.cpp): a query is a
byte for its kind and its arguments; text is 8 bytes of length and the bytes; numbers are in the
order of the machine. A client begins with VALIDATE and a magic number. GET of a key that is not
there is an error on the server, so CHECK is asked first.
"""

from __future__ import annotations

import re
import socket
import struct
import time
from typing import Optional

VALIDATE, GET, CHECK = 0, 3, 5
_MAGIC = 0x3C85F7CE
_READY = 0
MAX_VALUE = 4096
_URL = re.compile(rb"http://[^/\s]{1,255}:(\d{1,5})/?")


def debug_port(host: str, port: int, rank: int, seconds: float) -> Optional[int]:
    """Return the TCP port of the debug server that a rank has published; None for none.

    `torch.distributed.debug.start_debug_server` sets `debug_server/rank<r>` to its URL.

    Raises:
        OSError, ValueError: the store cannot be asked, or says something else than it should.
    """
    value = read("debug_server/rank%d" % rank, host, port, seconds)
    match = _URL.fullmatch(value.strip()) if value is not None else None
    return int(match[1]) if match else None


def read(key: str, host: str, port: int, seconds: float) -> Optional[bytes]:
    """Return the value of a key, None when it is not set; ``seconds`` are for all of its answers.

    Raises:
        OSError, ValueError: the store cannot be asked, or says something else than it should.
    """
    name = ("/" + key).encode("utf-8")  # TCPStore puts a slash before every key
    text = struct.pack("=Q", len(name)) + name
    with socket.create_connection((host, port), seconds) as store:
        until = time.monotonic() + seconds
        store.sendall(struct.pack("=BI", VALIDATE, _MAGIC))
        store.sendall(struct.pack("=BQ", CHECK, 1) + text)
        if _exactly(store, 1, until)[0] != _READY:
            return None
        store.sendall(struct.pack("=B", GET) + text)
        (size,) = struct.unpack("=Q", _exactly(store, 8, until))
        if size > MAX_VALUE:
            raise ValueError("a value of %d bytes" % size)
        return _exactly(store, size, until)


def _exactly(store: socket.socket, count: int, until: float) -> bytes:
    data = b""
    while len(data) < count:
        store.settimeout(max(0.001, until - time.monotonic()))
        part = store.recv(count - len(data))
        if not part:
            raise ValueError("the store closed the connection")
        data += part
    return data
