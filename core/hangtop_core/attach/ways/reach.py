"""Reachability of nodes without logging in: names, addresses and the port of sshd.

ssh itself gives the settings (`ssh -G`), so the user's configuration applies here, too.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING

from hangtop_core.attach.ways.ssh import jump_of, port_of, settings
from hangtop_core.attach.wire.futures import reject, resolve
from hangtop_core.model.node.check import Way
from hangtop_core.text.clean import clean

if TYPE_CHECKING:
    from collections.abc import Sequence

AT_ONCE = 32
"""Nodes that are tried at the same time: as many as the logins of `ssh.AT_ONCE`."""


def explore(nodes: Sequence[str], user: str | None, timeout: float) -> dict[str, Future[Way]]:
    """Find the way to each node, several at a time; return at once.

    ``timeout`` is in seconds for a connection. The threads are daemons: a name service without an
    answer delays no exit.
    """
    futures: dict[str, Future[Way]] = {node: Future() for node in nodes}
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for node in nodes:
        waiting.put(node)

    def work() -> None:
        while True:
            try:
                node = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                resolve(futures[node], way(node, user, timeout))
            except Exception as error:
                reject(futures[node], error)

    for number in range(min(AT_ONCE, len(nodes))):
        threading.Thread(target=work, name=f"hangtop-reach-{number}", daemon=True).start()
    return futures


def way(node: str, user: str | None, timeout: float) -> Way:
    """Find the way to one node: a name look-up, then ``timeout`` seconds at most per address."""
    ssh_settings = settings(node, user)
    host, port = ssh_settings.get("hostname", node), port_of(ssh_settings)
    through = jump_of(ssh_settings)
    if through is not None:
        return Way(host, port, through=through)
    try:
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:  # a ValueError is of an impossible name
        why = error.strerror if isinstance(error, OSError) else str(error)
        return Way(host, port, unresolved=clean(why or "unknown", 200))
    addresses = tuple(dict.fromkeys(str(info[4][0]) for info in resolved))
    took, refused = _connect(resolved, timeout)
    return Way(host, port, None, addresses, None, refused, took)


def _connect(resolved: Sequence[tuple[object, ...]], timeout: float) -> tuple[float | None, str]:
    """Try the addresses in turn, as ssh does; return the seconds it took, or why it failed."""
    refused = "no address"
    for family, kind, protocol, _, address in resolved:
        began = time.monotonic()
        try:
            with socket.socket(family, kind, protocol) as connection:  # type: ignore[arg-type]
                connection.settimeout(timeout)
                connection.connect(address)  # type: ignore[arg-type]
            return time.monotonic() - began, ""
        except TimeoutError:
            refused = f"no answer in {timeout:g} s"
        except OSError as error:
            refused = error.strerror or str(error)
    return None, refused
