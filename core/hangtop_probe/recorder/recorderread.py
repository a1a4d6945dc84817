"""Reads one flight recorder in a process of its own: what a hostile dump can do ends with it.

Run by `rankrecorder` with an order as its argument, with limits on memory and CPU time. An order is
JSON: `file` with `uid` and, for a rank that runs, `since`, the time of its start; or `unix` or
`tcp` with `handlers` and `seconds`; `entries` is how many to keep. Prints JSON: the recorder as
columns, or `code` and `args`.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import gc
import json
import os
import resource
import socket
import stat
import sys
import zlib
from typing import Any, Dict, List

from . import unpickle, workerserver
from .columns import Columns, reduce

MAX_FILE = 64 << 20
"""Bytes; a dump of 2,000 entries with stacks has about 350 KB."""
BASE_MEMORY = 512 << 20
PER_BYTE = 24
"""Bytes of memory per byte of dump: what was unpickled took 12 at most."""
MAX_CPU_S = 30


_ODD = (ValueError, TypeError, KeyError, OverflowError, AttributeError)
"""What `reduce` raises for something that is no dump."""


class Told(Exception):
    """Why there is nothing, as a code with arguments."""

    def __init__(self, code: str, **args: object) -> None:
        super().__init__(code)
        told = {key: str(value) for key, value in args.items()}
        self.code = code
        self.message: Dict[str, Any] = {"code": code, "args": told}

    def again(self) -> Told:
        """Return the same once more, to be raised by somebody else."""
        return Told(self.code, **self.message["args"])


def main() -> None:
    """Answer the order on the command line."""
    gc.disable()
    order = json.loads(sys.argv[1])
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_CPU, MAX_CPU_S)
    try:
        answer = _file(order) if "file" in order else _server(order)
    except Told as told:
        answer = told.message
    except MemoryError:
        answer = Told("memory").message
    except RecursionError:
        answer = Told("deep").message
    json.dump(answer, sys.stdout, separators=(",", ":"))


def limit(what: int, wanted: int) -> bool:
    """Set a limit of this process, as far as it may; return whether it has as much then."""
    _, hard = resource.getrlimit(what)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(what, (most, hard))
    return most == wanted


def _memory(size: int) -> None:
    """Bound the memory from here on, for a dump of so many bytes."""
    limit(resource.RLIMIT_AS, address_space() + BASE_MEMORY + PER_BYTE * size)


def address_space() -> int:
    """Return the bytes of address space that this process has now."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _file(order: Dict[str, Any]) -> Dict[str, Any]:
    """Read a file that the rank itself has written since it runs."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(order["file"], flags)
    except OSError as error:
        code = "link" if error.errno == errno.ELOOP else "unreadable"
        raise Told(code, why=os.strerror(error.errno or 0)) from None
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise Told("foreign", why="is no regular file")
        if found.st_uid != order["uid"]:
            raise Told("owner", uid=found.st_uid, wanted=order["uid"])
        if found.st_size > MAX_FILE:
            raise Told("too-large", mib=found.st_size >> 20, limit=MAX_FILE >> 20)
        _memory(found.st_size)
        try:
            data = file.read(MAX_FILE)
        except OSError as error:
            raise Told("unreadable", why=os.strerror(error.errno or 0)) from None
    columns = reduce_dump(data)
    earlier = columns.since(int(order.get("since", 0) * 1e9))
    if earlier and not columns.length:
        raise Told("earlier")
    columns.newest(order["entries"])
    return {"trace": row(columns), "at": found.st_mtime, "earlier": earlier}


def _server(order: Dict[str, Any]) -> Dict[str, Any]:
    """Ask the handlers in turn until one answers with entries; else what the first one said."""
    address: workerserver.Address = order.get("unix") or (order["tcp"][0], int(order["tcp"][1]))
    _memory(workerserver.MAX_ANSWER)
    first, unknown = None, []
    for handler in order["handlers"]:
        try:
            data = workerserver.post(address, "/handler/" + handler, order["seconds"])
        except workerserver.NoHandler:
            unknown.append(handler)
            continue
        except socket.timeout:
            raise Told("no-answer", seconds="%g" % order["seconds"]) from None
        except (OSError, ValueError) as error:
            raise Told("error", why=str(error)[:200]) from None
        made = _row(data, order["entries"])
        first = first or made
        if made["trace"]["length"]:
            return made
    if first is None:
        raise Told("no-handler")
    if unknown and not first["trace"]["groups"]:
        # Builds for CUDA have NCCL's recorder also where all groups are gloo's, whose recorder
        # the server of torch 2.8 does not know.
        raise Told("nccl-only")
    return first


def _row(data: bytes, entries: int) -> Dict[str, Any]:
    columns = reduce_dump(data)
    columns.newest(entries)
    return {"trace": row(columns)}


def reduce_dump(data: bytes) -> Columns:
    """Decode and reduce a dump.

    Raises:
        Told: it is none, or not whole, or asks for more than data.
    """
    if not data:
        raise Told("truncated")
    try:
        unpickle.check_start(data)
        return reduce(unpickle.unpickle(data) if data[:1] == b"\x80" else _parse(data))
    except unpickle.TruncatedError:
        raise Told("truncated") from None
    except unpickle.RefusedError as error:
        raise Told("refused", why=str(error)[:200]) from None
    except (unpickle.ForeignError, *_ODD) as error:
        raise Told("foreign", why=str(error)[:200]) from None


def _parse(data: bytes) -> object:
    try:
        return json.loads(data)
    except ValueError as error:
        # In the middle of a text the end of a line behind it is what is complained of.
        if getattr(error, "pos", 0) >= len(data.rstrip()) or not data.rstrip().endswith(b"}"):
            raise unpickle.TruncatedError("ends too early") from None
        raise


def row(columns: Columns) -> Dict[str, Any]:
    """A recorder as JSON has it; the numbers of its entries as one compressed text."""
    arrays: List[Any] = [columns.group, columns.call, columns.site, columns.flag]
    arrays += [columns.seq, columns.record, columns.created]
    if sys.byteorder == "big":
        for one in arrays:
            if not isinstance(one, bytes):
                one.byteswap()
    data = zlib.compress(b"".join(map(bytes, arrays)), 6)
    return {
        "version": columns.version,
        "library": columns.library,
        "groups": columns.groups,
        "calls": columns.calls,
        "sites": columns.sites,
        "statuses": columns.statuses,
        "group_ids": [list(pair) for pair in columns.group_ids.items()],
        "configured": columns.configured,
        "length": columns.length,
        "dropped": columns.dropped,
        "wrapped": columns.wrapped,
        "timeout_ms": columns.timeout_ms,
        "columns": base64.b64encode(data).decode("ascii"),
    }
