"""TCP connections of ranks whose other end acknowledges nothing: the kernel sends again and again.

That is so when the other node is gone, or something between the two drops packets; a process that
is stopped or does not read is another matter, since its kernel goes on acknowledging. The pauses
between two attempts double, from 0.2 s, so a connection counts from three in a row on, 1.4 s.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Callable, Dict, List, Optional, Tuple

from . import procfs
from .sockets import Socket, own_inodes, parse_inet

if TYPE_CHECKING:
    from .requests import Message

LEAST = 3
LOOK_S = 3.0
"""Seconds between two readings of a node's connections, of which there may be ten thousands."""
SHOWN = 16


class Stalled:
    """Looks now and then, at each network namespace once for all its ranks."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: Dict[Optional[str], Tuple[float, Dict[int, Socket]]] = {}

    def of(self, pid: int) -> "List[Message]":
        """Return those of a process in the form of model.Stalled, the longest stalled first."""
        space = procfs.link("/proc/%d/ns/net" % pid)
        at, found = self._seen.get(space, (-LOOK_S, {}))
        now = self._clock()
        if now - at >= LOOK_S:
            found = _read(pid)
            self._seen = {k: v for k, v in self._seen.items() if now - v[0] < 2 * LOOK_S}
            self._seen[space] = (now, found)
        if not found:
            return []
        mine = [found[inode] for inode in own_inodes(pid) if inode in found]
        mine.sort(key=lambda one: (-one.retransmits, one.local, one.remote))
        return [
            {
                "local": one.local,
                "remote": one.remote,
                "unacknowledged": one.send_queue,
                "retransmits": one.retransmits,
            }
            for one in mine[:SHOWN]
        ]


def _read(pid: int) -> Dict[int, Socket]:
    found = {}
    for name in ("tcp", "tcp6"):
        data = procfs.read_all("/proc/%d/net/%s" % (pid, name)) or b""
        # Of ten thousand connections hardly any has data under way: the others are not parsed.
        lines = b"\n".join(line for line in data.split(b"\n") if b" 01:" in line)
        for one in parse_inet(b"\n" + lines, name[:3]):
            if one.state == "ESTABLISHED" and one.retransmits >= LEAST:
                found[one.inode] = one
    return found
