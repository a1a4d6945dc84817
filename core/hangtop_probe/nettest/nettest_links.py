"""Network interfaces of this node, with their addresses, as the kernel says over netlink.

Not from /sys: where a container shares it with its host, it shows the host's interfaces. Formats:
rtnetlink(7), include/uapi/linux/if_link.h and if_addr.h; the kinds are those of `ip -d link`.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from typing import Any, Dict, Iterator, List, Optional, Tuple

from ..proc import procfs

_GETLINK, _NEWLINK, _GETADDR, _NEWADDR, _ERROR, _DONE = 18, 16, 22, 20, 2, 3
_REQUEST_DUMP = 0x301
_UP, _LOOPBACK = 0x1, 0x8
_NAME, _MTU, _LINK_MASTER, _OPERSTATE, _LINKINFO, _INFO_KIND = 3, 4, 10, 16, 18, 1
_ADDRESS, _LOCAL = 1, 2
_INFINIBAND = 32
"""ARPHRD_INFINIBAND (include/uapi/linux/if_arp.h)."""
_STATES = ("unknown", "notpresent", "down", "lowerlayerdown", "testing", "dormant", "up")
_SCOPES = {0: "global", 253: "link", 254: "host"}
_CONTAINERS = ("docker", "br-", "virbr", "cni", "flannel", "cali", "lxc", "lxd", "podman", "vnet")
MAX_LINKS = 128
MAX_ADDRESSES = 32


def read() -> List[Dict[str, Any]]:
    """Return every interface; raise OSError where netlink is refused, or says what is not known.

    ``kind`` is loopback, infiniband, container (of docker and the like), ethernet (no virtual
    kind: real hardware, or what a hypervisor calls so), or what the kernel calls it: veth, bridge,
    bond, vlan, tun, vxlan, dummy, ...
    """
    try:
        return _read()
    except (struct.error, LookupError, ValueError) as error:
        raise OSError(errno.EPROTO, "netlink answers what cannot be read: %s" % error) from error


def _read() -> List[Dict[str, Any]]:
    links: Dict[int, Dict[str, Any]] = {}
    for body in _dump(_GETLINK, _NEWLINK):
        _, kind, index, flags = struct.unpack_from("=BxHiI", body)
        parts = dict(_attributes(body[16:]))
        name = procfs.text(parts.get(_NAME, b"").rstrip(b"\0"))[:32]
        state = parts.get(_OPERSTATE, b"\0")[0]
        links[index] = {
            "name": name,
            "kind": _kind(name, kind, flags, dict(_attributes(parts.get(_LINKINFO, b"")))),
            "up": bool(flags & _UP),
            "state": _STATES[state] if state < len(_STATES) else "unknown",
            "mtu": _number(parts.get(_MTU)),
            "master": _number(parts.get(_LINK_MASTER)),
            "addresses": [],
        }
    for body in _dump(_GETADDR, _NEWADDR):
        family, length, _, scope, index = struct.unpack_from("=BBBBI", body)
        parts = dict(_attributes(body[8:]))
        raw = parts.get(_LOCAL) or parts.get(_ADDRESS)
        if raw is None or index not in links or family not in (socket.AF_INET, socket.AF_INET6):
            continue
        where: List[Dict[str, Any]] = links[index]["addresses"]
        if len(where) < MAX_ADDRESSES:
            scoped = _SCOPES.get(scope, "other")
            where.append(
                {"address": socket.inet_ntop(family, raw), "length": length, "scope": scoped}
            )
    for fields in links.values():
        above = links.get(fields["master"] or -1)
        fields["master"] = above["name"] if above is not None else None
    return list(links.values())[:MAX_LINKS]


def default_interface() -> Optional[str]:
    """Return the interface of the default route of IPv4, by /proc/net/route."""
    for line in (procfs.read_all("/proc/net/route") or b"").split(b"\n")[1:]:
        words = line.split()
        if len(words) > 7 and words[1] == words[7] == b"00000000":
            return procfs.text(words[0])[:32]
    return None


def ephemeral_ports() -> List[int]:
    """Return the first and last port that the kernel gives to those who ask for any."""
    words = (procfs.read("/proc/sys/net/ipv4/ip_local_port_range") or b"").split()
    return [int(word) for word in words[:2] if word.isdigit() and len(word) < 6]


def _kind(name: str, kind: int, flags: int, info: Dict[int, bytes]) -> str:
    if flags & _LOOPBACK:
        return "loopback"
    if kind == _INFINIBAND:
        return "infiniband"
    if name.startswith(_CONTAINERS):
        return "container"
    virtual = procfs.text(info.get(_INFO_KIND, b"").rstrip(b"\0"))[:16]
    return virtual or "ethernet"


def _number(data: Optional[bytes]) -> Optional[int]:
    return struct.unpack("=I", data)[0] if data is not None and len(data) == 4 else None


def _dump(question: int, answer: int) -> Iterator[bytes]:
    """Ask the kernel for all of one kind; yield the bodies of its messages."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
        netlink.settimeout(5.0)
        netlink.bind((0, 0))
        body = struct.pack("=Bxxxiii", 0, 0, 0, 0)
        head = struct.pack("=IHHII", 16 + len(body), question, _REQUEST_DUMP, 1, 0)
        netlink.sendto(head + body, (0, 0))
        while True:
            for kind, part in _messages(netlink.recv(1 << 18)):
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    number = -struct.unpack_from("=i", part)[0]
                    raise OSError(number, os.strerror(number))
                if kind == answer:
                    yield part


def _messages(data: bytes) -> Iterator[Tuple[int, bytes]]:
    while len(data) >= 16:
        length, kind = struct.unpack_from("=IH", data)
        if length < 16:
            return
        yield kind, data[16:length]
        data = data[(length + 3) & ~3 :]


def _attributes(data: bytes) -> Iterator[Tuple[int, bytes]]:
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        if length < 4:
            return
        yield kind & 0x3FFF, data[4:length]
        data = data[(length + 3) & ~3 :]
