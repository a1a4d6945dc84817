"""Read the sockets of a network namespace from /proc/PID/net: addresses, states and queues.

Formats: net/ipv4/tcp_ipv4.c, net/ipv4/udp.c, net/ipv6/tcp_ipv6.c and net/unix/af_unix.c of
Linux, as proc(5) describes them.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from typing import Dict, FrozenSet, List, NamedTuple, Optional, Tuple

from ..proc import procfs

_TCP_STATES = {
    1: "ESTABLISHED",
    2: "SYN_SENT",
    3: "SYN_RECV",
    4: "FIN_WAIT1",
    5: "FIN_WAIT2",
    6: "TIME_WAIT",
    7: "CLOSE",
    8: "CLOSE_WAIT",
    9: "LAST_ACK",
    10: "LISTEN",
    11: "CLOSING",
    12: "NEW_SYN_RECV",
}
_UNIX_STATES = {0: "FREE", 1: "UNCONNECTED", 2: "CONNECTING", 3: "CONNECTED", 4: "DISCONNECTING"}
_LISTENING = 0x10000
"""__SO_ACCEPTCON in the flags of a unix socket (include/linux/net.h)."""


class Socket(NamedTuple):
    """One socket; the fields of model.Socket without its peer's process."""

    inode: int
    family: str
    state: str
    local: str
    remote: str
    recv_queue: int = 0
    send_queue: int = 0
    retransmits: int = 0
    """Retransmissions in a row of the same data."""


def parse_inet(data: bytes, family: str) -> List[Socket]:
    """Parse /proc/PID/net/tcp, tcp6, udp or udp6; malformed lines are left out."""
    found = []
    for line in data.split(b"\n")[1:]:
        fields = line.split()
        try:
            local, remote = _address(fields[1]), _address(fields[2])
            state = int(fields[3], 16)
            send, receive = (int(part, 16) for part in fields[4].split(b":"))
            # An unread FIN of the peer counts as one byte.
            receive -= state == 8 and receive > 0
            inode = int(fields[9])
            # Timer 1 is retransmission (net/ipv4/tcp_ipv4.c, get_tcp4_sock), 4 zero-window probes,
            # which count if unanswered: a peer that does not read still answers.
            timer = fields[5][:3]
            again = int(fields[6], 16) if timer == b"01:" else int(fields[8]) * (timer == b"04:")
        except (IndexError, ValueError, struct.error, OSError):
            continue
        name = _TCP_STATES.get(state, "state %x" % state)
        found.append(Socket(inode, family, name, local, remote, receive, send, again))
    return found


def listeners(folder: str, port: str) -> List[Socket]:
    """Return the TCP sockets that listen on a port, by /proc/net or /proc/PID/net."""
    return [
        one
        for name in ("tcp", "tcp6")
        for one in parse_inet(procfs.read_all("%s/%s" % (folder, name)) or b"", name)
        if one.state == "LISTEN" and one.local.rpartition(":")[2] == port
    ]


def inode_of(target: str) -> Optional[int]:
    """Return the inode of `socket:[INODE]`, the target of a descriptor; None for other targets."""
    if not target.startswith("socket:["):
        return None
    return procfs.number(target[8:-1].encode("utf-8", "replace"))


def open_inodes(pid: int) -> FrozenSet[int]:
    """Return the inodes of a process's open sockets; raise OSError where that is not permitted."""
    names = os.listdir("/proc/%d/fd" % pid)
    links = (procfs.link("/proc/%d/fd/%s" % (pid, name)) or "" for name in names)
    return frozenset(inode for inode in map(inode_of, links) if inode is not None)


def own_inodes(pid: int) -> FrozenSet[int]:
    """Return the inodes of a process's open sockets; none where that is not permitted."""
    try:
        return open_inodes(pid)
    except OSError:
        return frozenset()


def _address(field: bytes) -> str:
    """Decode `0100007F:1F90`: 32-bit words in the byte order of the machine, then the port."""
    words, port = field.split(b":")
    raw = bytes.fromhex(words.decode("ascii"))
    if sys.byteorder == "little":
        raw = b"".join(struct.pack(">I", w) for w in struct.unpack("<%dI" % (len(raw) // 4), raw))
    if len(raw) == 4:
        return "%s:%d" % (socket.inet_ntop(socket.AF_INET, raw), int(port, 16))
    if raw[:12] == b"\0" * 10 + b"\xff\xff":
        return "%s:%d" % (socket.inet_ntop(socket.AF_INET, raw[12:]), int(port, 16))
    return "[%s]:%d" % (socket.inet_ntop(socket.AF_INET6, raw), int(port, 16))


def parse_unix(data: bytes) -> List[Socket]:
    """Parse /proc/PID/net/unix; the path is `local`, and `@name` an abstract one."""
    found = []
    for line in data.split(b"\n")[1:]:
        fields = line.split(None, 7)
        try:
            flags, state, inode = int(fields[3], 16), int(fields[5], 16), int(fields[6])
        except (IndexError, ValueError):
            continue
        path = procfs.text(fields[7]) if len(fields) > 7 else ""
        name = "LISTEN" if flags & _LISTENING else _UNIX_STATES.get(state, "state %x" % state)
        found.append(Socket(inode, "unix", name, path, ""))
    return found


class Sockets:
    """All sockets of the network namespace of one process, by inode."""

    def __init__(self, pid: int) -> None:
        base = "/proc/%d/net/" % pid
        self.by_inode: Dict[int, Socket] = {}
        for name in ("tcp", "tcp6", "udp", "udp6"):
            for entry in parse_inet(procfs.read_all(base + name) or b"", name[:3]):
                self.by_inode[entry.inode] = entry
        for entry in parse_unix(procfs.read_all(base + "unix") or b""):
            self.by_inode[entry.inode] = entry
        self._by_ends: Dict[Tuple[str, str, str], int] = {
            (s.family, s.local, s.remote): s.inode
            for s in self.by_inode.values()
            if s.family != "unix" and s.state != "LISTEN"
        }

    def peer(self, entry: Socket) -> Optional[int]:
        """Return the inode of the other end of a connection within this namespace."""
        inode = self._by_ends.get((entry.family, entry.remote, entry.local))
        return inode if inode else None
