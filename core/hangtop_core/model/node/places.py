"""Mapping of addresses to nodes: a store may be given as a name, an address or localhost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.text.addresses import is_address, is_loopback

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hangtop_core.model.snapshot import Node, Process


class Places:
    """The names and addresses of the observed nodes."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self._machines: dict[str, tuple[str, str, int | None]] = {}
        self._nodes: dict[str, str | None] = {}
        short: dict[str, str | None] = {}
        for node in nodes:
            if node.boot_id and node.hostname:
                # Containers of one machine share its boot, and those on its network also its name.
                self._machines[node.name] = (node.boot_id, node.hostname, node.pid_ns)
            names = [name.lower() for name in (node.name, node.hostname) if name]
            for name in dict.fromkeys((*names, *node.addresses)):
                _claim(self._nodes, name, node.name)
            for name in dict.fromkeys(names):
                if not is_address(name):
                    _claim(short, name.partition(".")[0], node.name)
        for name, owner in short.items():
            self._nodes.setdefault(name, owner)

    def node_of(self, host: str, on: str) -> str | None:
        """Return the node that ``host`` means to a process on the node ``on``; None if unknown.

        An address that several nodes have (docker's bridge) means none of them.
        """
        if is_loopback(host):
            return on
        host = host.strip("[]").lower()
        if host in self._nodes:
            return self._nodes[host]
        return None if is_address(host) else self._nodes.get(host.partition(".")[0])

    def machine(self, node: str) -> object:
        """Return a value that is equal for two names of one machine: boot, host and namespace."""
        return self._machines.get(node, node)

    def store(self, host: str, port: str, process: Process, node: str) -> str:
        """Return a spelling of ``host:port`` that is equal for all names of the same store."""
        inside = f"/net {process.net_ns}" if process.net_ns and is_loopback(host) else ""
        return f"{self.node_of(host, node) or host.lower()}{inside}:{port}"


def _claim(owners: dict[str, str | None], name: str, node: str) -> None:
    owners[name] = node if owners.get(name, node) == node else None
