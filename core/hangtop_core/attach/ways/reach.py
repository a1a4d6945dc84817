"""How far one gets to nodes without logging in: names, addresses and the port of sshd.

What ssh would do is asked of ssh itself (`ssh -G`), so the user's configuration holds here, too.
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
"""Nodes that are looked at at the same time: as many as `ssh.AT_ONCE` lets log in."""


def explore(nodes: Sequence[str], user: str | None, timeout: float) -> dict[str, Future[Way]]:
    """Find the way to each node, several at a time; returns at once.

    ``timeout`` is in seconds for a connection. The threads are daemons: a name service that does
    not answer keeps nobody.
    """
    found: dict[str, Future[Way]] = {node: Future() for node in nodes}
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
                resolve(found[node], way(node, user, timeout))
            except Exception as error:
                reject(found[node], error)

    for number in range(min(AT_ONCE, len(nodes))):
        threading.Thread(target=work, name=f"hangtop-reach-{number}", daemon=True).start()
    return found


def way(node: str, user: str | None, timeout: float) -> Way:
    """Find the way to one node: a name look-up, then ``timeout`` seconds at most per address."""
    told = settings(node, user)
    host, port = told.get("hostname", node), port_of(told)
    through = jump_of(told)
    if through is not None:
        return Way(host, port, through=through)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:  # the latter of what is no name at all
        why = error.strerror if isinstance(error, OSError) else str(error)
        return Way(host, port, unresolved=clean(why or "unknown", 200))
    addresses = tuple(dict.fromkeys(str(info[4][0]) for info in found))
    took, refused = _connect(found, timeout)
    return Way(host, port, None, addresses, None, refused, took)


def _connect(found: Sequence[tuple[object, ...]], timeout: float) -> tuple[float | None, str]:
    """Try the addresses in turn, as ssh does; return the seconds it took, or why not."""
    refused = "no address"
    for family, kind, protocol, _, address in found:
        began = time.monotonic()
        try:
            with socket.socket(family, kind, protocol) as one:  # type: ignore[arg-type]
                one.settimeout(timeout)
                one.connect(address)  # type: ignore[arg-type]
            return time.monotonic() - began, ""
        except TimeoutError:
            refused = f"no answer in {timeout:g} s"
        except OSError as error:
            refused = error.strerror or str(error)
    return None, refused
