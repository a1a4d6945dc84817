"""Whether a connection stands still because large packets get lost, as the kernel here knows it.

Where some MTU on the way is smaller than set, and nobody says so (ICMP is filtered), small packets
pass and large ones do not: one can log in, or nearly, and then nothing comes any more. Which is
seen at this end alone: what was sent later, and is small, was acknowledged (sacked), and what is
large is sent again and again; or parts of what the node sends arrive without what is before them.

Fields are those of `struct tcp_info` (include/uapi/linux/tcp.h). The socket belongs to the child
that connects, ssh mostly: pidfd_getfd(2), Linux 5.6, borrows it to ask.
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
"""The number of the system call, the same on all architectures (asm-generic/unistd.h)."""
_SIZE = 256
_AGAIN = 2
"""How often in a row something has to be sent in vain."""
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
    """What is told of one TCP connection; counts are of packets."""

    backoff: int
    """How often in a row the oldest of what is not acknowledged was sent again."""
    sacked: int
    """Later ones that have arrived there."""
    early: int
    """Packets that came here before what belongs ahead of them, since the beginning."""


def fix(node: str) -> Command:
    """Return how to find the size that passes to a node."""
    return Command("", ("ping", "-M", "do", "-s", 1472, node), _FIX)


def lost(pid: int | None, talking: bool) -> str | None:
    """Return in which direction large packets get lost on the connections of a process.

    What comes out of order may have been late only, long ago: that counts as long as the two ends
    are not ``talking`` yet. None where nothing says so, or it cannot be asked.
    """
    states = list(_states(pid)) if pid is not None else []
    if any(one.backoff >= _AGAIN and one.sacked for one in states):
        return TO
    return FROM if not talking and any(one.early for one in states) else None


def _states(pid: int) -> Iterator[State]:
    """Look at the TCP sockets of a process and of those that it has started, as for a jump host."""
    waiting = [pid]
    for _ in range(_MAX_PROCESSES):
        if not waiting:
            return
        one = waiting.pop(0)
        children = procfs.read(f"/proc/{one}/task/{one}/children") or b""
        waiting += map(int, children.split())
        with contextlib.suppress(OSError):
            yield from _of_process(one)


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
            with contextlib.suppress(OSError, struct.error), socket.socket(fileno=borrowed) as one:
                yield _read(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE))
    finally:
        os.close(process)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _read(info: bytes) -> State:
    """Pick what counts; an older kernel tells less at the end."""
    (sacked,) = struct.unpack_from("=I", info, 28)
    early = struct.unpack_from("=I", info, 224)[0] if len(info) >= 228 else 0
    return State(info[4], sacked, early)
