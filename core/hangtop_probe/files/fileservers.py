"""Read the state of connections to servers of network file systems, without asking the servers.

A rank that waits for a dead file server is in state D, often without a descriptor that names the
server: it closes a file, or touches a mapped one. The kernel's own connections are in /proc/net/tcp
as all others. When an NFS server was cut off on Linux 6.1, data was retransmitted eight times and
more; then the connection was dropped and made anew, with none between attempts, which were seconds
to minutes apart.

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
    """Return the servers of ``mounts`` that use TCP, as descriptors.FileServer."""
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
        whole: whether that is the node's own namespace, which must have a mount's connection;
            elsewhere a missing connection means nothing.
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
    """Return the worst established connection, where a server has several (nconnect=)."""
    return one.state == "ESTABLISHED", one.retransmits


def _remote(mount: procfs.Mount) -> str:
    """Return `address:port` of a mount's server; empty where it does not use TCP."""
    port = _PORTS.get(mount.fstype)
    pairs = [word.partition("=") for word in mount.options.split(",")]
    options = {name: value for name, _, value in pairs}
    address = options.get("addr", "")
    if port is None or not address or options.get("proto", "tcp") not in ("tcp", "tcp6"):
        return ""
    return "%s:%s" % ("[%s]" % address if ":" in address else address, options.get("port", port))
