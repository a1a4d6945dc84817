"""Detection of lost large packets on a stalled connection, from the local kernel.

Where some MTU on the path is too small, and no router reports it (ICMP is filtered), small packets
pass and large ones do not: a login succeeds, or nearly, and then nothing comes any more. This is
visible at one end alone: later, small data were acknowledged (sacked), and large data are sent
again and again; or parts of the node's data arrive without earlier ones.

Fields are those of `struct tcp_info` (include/uapi/linux/tcp.h). The socket belongs to the child
that connects, mostly ssh: pidfd_getfd(2), Linux 5.6, borrows it for the query.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.text.commands import Command
from hangtop_probe.proc import procfs

if TYPE_CHECKING:
    from collections.abc import Iterator

_PIDFD_GETFD = 438
"""Number of the system call, the same on all architectures (asm-generic/unistd.h)."""
_SIZE = 256
_AGAIN = 2
"""Number of unsuccessful retransmissions in a row that count."""
_MAX_PROCESSES = 8
_MAX_DESCRIPTORS = 64
_MTU = "an MTU on the way is smaller than set, and nothing there says so"
TO = f"small packets reach it, large ones do not: {_MTU}"
FROM = f"small packets of it arrive, large ones do not: {_MTU}"
_FIX = (
    "give interfaces, tunnels and switches on the way one MTU; 1472 fits one of 1500, and smaller "
    "sizes find what passes"
)


class State(NamedTuple):
    """State of one TCP connection; counts are of packets."""

    backoff: int
    """How often in a row the oldest unacknowledged packet was sent again."""
    sacked: int
    """Later packets that have arrived at the other end."""
    early: int
    """Packets that arrived here before earlier ones, since the beginning."""


def fix(node: str) -> Command:
    """Return the command that finds the packet size that passes to a node."""
    return Command("", ("ping", "-M", "do", "-s", 1472, node), _FIX)


def lost(pid: int | None, talking: bool) -> str | None:
    """Return in which direction large packets get lost on the connections of a process.

    Packets out of order may only have been late, long ago: they count while the two ends are not
    ``talking`` yet. Return None without such evidence, or where the kernel cannot be asked.
    """
    states = list(_states(pid)) if pid is not None else []
    if any(state.backoff >= _AGAIN and state.sacked for state in states):
        return TO
    return FROM if not talking and any(state.early for state in states) else None


def _states(pid: int) -> Iterator[State]:
    """Yield the TCP sockets of a process and of its children, as for a jump host."""
    waiting = [pid]
    for _ in range(_MAX_PROCESSES):
        if not waiting:
            return
        process = waiting.pop(0)
        children = procfs.read(f"/proc/{process}/task/{process}/children") or b""
        waiting += map(int, children.split())
        with contextlib.suppress(OSError):
            yield from _of_process(process)


def _of_process(pid: int) -> Iterator[State]:
    numbers = [
        int(name)
        for name in os.listdir(f"/proc/{pid}/fd")[:_MAX_DESCRIPTORS]
        if (procfs.link(f"/proc/{pid}/fd/{name}") or "").startswith("socket:")
    ]
    process = os.pidfd_open(pid)
    try:
        for number in numbers:
            borrowed = _libc().syscall(_PIDFD_GETFD, process, number, 0)
            if borrowed < 0:
                continue
            with contextlib.suppress(OSError, struct.error), socket.socket(fileno=borrowed) as tcp:
                yield _read(tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE))
    finally:
        os.close(process)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _read(info: bytes) -> State:
    """Return the relevant fields; an older kernel has fewer at the end."""
    (sacked,) = struct.unpack_from("=I", info, 28)
    early = struct.unpack_from("=I", info, 224)[0] if len(info) >= 228 else 0
    return State(info[4], sacked, early)
