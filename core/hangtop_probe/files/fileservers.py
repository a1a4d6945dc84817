"""How the connections to the servers of network file systems stand; the servers are not asked.

A rank that waits for a file server that is gone is in state D, often without a descriptor that
would tell which: it closes a file, or touches one that is mapped. The kernel's own connections
stand in /proc/net/tcp like others. What was seen on Linux 6.1 when an NFS server was cut off: what
was sent is sent again, eight times and more; then the connection is given up and made anew, and
between two attempts, seconds to minutes apart, there is none.

Formats: `addr=` and `port=` of fs/nfs/super.c (nfs_show_mount_options) and fs/smb/client/cifsfs.c.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, Iterable, List, Tuple

from ..net.sockets import Socket, parse_inet
from ..proc import procfs
from . import filesystems

if TYPE_CHECKING:
    from ..wire.requests import Message

_PORTS = {"nfs": "2049", "nfs4": "2049", "cifs": "445", "smb3": "445"}
MOST = 32  # mounts that are told of


def read(mounts: Iterable[procfs.Mount]) -> List[Message]:
    """Return the servers of ``mounts`` that are spoken to by TCP, as descriptors.FileServer."""
    wanted = [(mount, remote) for mount in mounts for remote in [_remote(mount)] if remote]
    if not wanted:
        return []
    found: List[Socket] = []
    for name in ("tcp", "tcp6"):
        found += parse_inet(procfs.read_all("/proc/self/net/" + name) or b"", name[:3])
    whole = procfs.link("/proc/self/ns/net") == procfs.link("/proc/1/ns/net")
    return stand(wanted[:MOST], found, whole)


def stand(
    wanted: List[Tuple[procfs.Mount, str]], sockets: Iterable[Socket], whole: bool
) -> List[Message]:
    """Join mounts, each with the address of its server, with the connections of this node.

    Args:
        wanted: mounts, each with the address and port of its server.
        sockets: of the network namespace of the probe.
        whole: whether that is the node's own, where a mount's connection must be: elsewhere that
            there is none says nothing.
    """
    by_remote: Dict[str, Socket] = {}
    for one in sockets:
        best = by_remote.get(one.remote)
        if best is None or _rank(one) > _rank(best):
            by_remote[one.remote] = one
    rows = []
    for mount, remote in wanted:
        socket = by_remote.get(remote)
        if socket is None and not whole:
            continue
        rows.append(
            {
                "mount": mount.point,
                "fstype": mount.fstype,
                "server": filesystems.server_name(mount.source) or mount.source,
                "remote": remote,
                "state": socket.state if socket is not None else None,
                "retransmits": socket.retransmits if socket is not None else 0,
            }
        )
    return rows


def _rank(one: Socket) -> Tuple[bool, int]:
    """Of several connections to one server (nconnect=) the worst that is established counts."""
    return one.state == "ESTABLISHED", one.retransmits


def _remote(mount: procfs.Mount) -> str:
    """Return `address:port` of a mount's server; empty where it is not spoken to by TCP."""
    port = _PORTS.get(mount.fstype)
    pairs = [word.partition("=") for word in mount.options.split(",")]
    options = {name: value for name, _, value in pairs}
    address = options.get("addr", "")
    if port is None or not address or options.get("proto", "tcp") not in ("tcp", "tcp6"):
        return ""
    return "%s:%s" % ("[%s]" % address if ":" in address else address, options.get("port", port))
