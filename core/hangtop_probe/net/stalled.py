"""Find stalled TCP connections of ranks: not acknowledged, not answered, or half closed.

On most of them the peer acknowledges nothing, and the kernel retransmits.

That happens when the other node is down, or packets are dropped on the way; a process that is
stopped or does not read is another case, since its kernel still acknowledges. The pauses between
retransmissions double, from 0.2 s, so a connection counts from three in a row on, 1.4 s. SYNs are
repeated after 1, 2, 4 s; a connection that the peer has closed and this end has not (CLOSE_WAIT)
counts at once.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Callable, Dict, List, Optional, Tuple

from ..proc import procfs
from .sockets import Socket, own_inodes, parse_inet

if TYPE_CHECKING:
    from ..wire.requests import Message

LEAST = {"ESTABLISHED": 3, "SYN_SENT": 2, "CLOSE_WAIT": 0}
"""Retransmissions in a row from which a connection counts, by its state."""
_LINES = (b" 01:", b" 04:", b" 08 ")
"""Parts of lines with a running timer for retransmission or probes, or in CLOSE_WAIT."""
LOOK_S = 3.0
"""Seconds between two readings of a node's connections, of which there may be ten thousands."""
LONGEST_S = 60.0
"""Most seconds between two readings where one is costly: the kernel walks half a million slots."""
SHARE = 0.002
"""Fraction of one core that reading connections may cost."""
SHOWN = 16


class Stalled:
    """Stalled connections, read now and then once per network namespace for all its ranks."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.share = SHARE
        self._clock = clock
        self._seen: Dict[Optional[str], Tuple[float, Dict[int, Socket]]] = {}
        """Time of the next reading and stalled sockets, by network namespace."""

    def of(self, pid: int) -> "List[Message]":
        """Return the stalled connections of a process as model.Stalled, longest stalled first."""
        space = procfs.link("/proc/%d/ns/net" % pid)
        due, stalled = self._seen.get(space, (0.0, {}))
        now = self._clock()
        if now >= due:
            began = time.thread_time()
            stalled = _read(pid)
            pause = max(LOOK_S, (time.thread_time() - began) / self.share)
            self._seen = {k: v for k, v in self._seen.items() if now < v[0] + LONGEST_S}
            self._seen[space] = (now + min(pause, LONGEST_S), stalled)
        if not stalled:
            return []
        mine = [stalled[inode] for inode in own_inodes(pid) if inode in stalled]
        mine.sort(
            key=lambda connection: (-connection.retransmits, connection.local, connection.remote)
        )
        return [
            {
                "local": connection.local,
                "remote": connection.remote,
                "unacknowledged": connection.send_queue,
                "retransmits": connection.retransmits,
                "state": connection.state,
            }
            for connection in mine[:SHOWN]
        ]


def _read(pid: int) -> Dict[int, Socket]:
    stalled = {}
    for name in ("tcp", "tcp6"):
        data = procfs.read_all("/proc/%d/net/%s" % (pid, name)) or b""
        # Few of ten thousand connections have data in flight: the others are not parsed.
        lines = b"\n".join(line for line in data.split(b"\n") if any(m in line for m in _LINES))
        for connection in parse_inet(b"\n" + lines, name[:3]):
            least = LEAST.get(connection.state)
            if least is not None and connection.retransmits >= least:
                stalled[connection.inode] = connection
    return stalled
