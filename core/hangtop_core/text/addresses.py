"""Names and addresses of hosts: their kind, host and port."""

from __future__ import annotations

import re

_LOOPBACK = re.compile(
    r"localhost(\.localdomain)?|127\.[0-9.]+|\[?::1\]?|0\.0\.0\.0", re.IGNORECASE
)
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:%-]{0,254}")
"""A host name, an alias in the user's ssh config, or an address. Never an option such as `-oX`."""
_ADDRESS = re.compile(r"[0-9.]+|.*:.*")


def is_name(text: str) -> bool:
    """Return whether a text can be the name or address of a node."""
    return NAME.fullmatch(text) is not None


def is_loopback(host: str) -> bool:
    """Return whether a host name means the local machine, whichever that is."""
    return _LOOPBACK.fullmatch(host) is not None


def stays_here(address: str) -> bool:
    """Return whether `127.0.0.1:443`, or the same in IPv6, leads to no other machine."""
    return address.startswith(("127.", "[::1]"))


def is_address(host: str) -> bool:
    """Return whether a host is given as an IP address."""
    return _ADDRESS.fullmatch(host) is not None


def host_of(address: str) -> str:
    """Return the host of `10.0.0.7:443` or `[fe80::1]:443`, as in the addresses of nodes."""
    return address.rpartition(":")[0].strip("[]")


def port_of(address: str) -> str:
    """Return the port of `10.0.0.7:443`."""
    return address.rpartition(":")[2]
