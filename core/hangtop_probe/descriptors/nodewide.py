"""Node-wide data for reading descriptors: locks, sockets and owners of files."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Dict, List, Optional

from ..net.sockets import Sockets
from ..proc import procfs
from . import locks, owners

if TYPE_CHECKING:
    from .owners import Owner


class Node:
    """Node-wide data, each part read once and only on demand."""

    def __init__(self, walks: owners.Walks = owners.SHARED) -> None:
        self._walks = walks
        self._since = time.monotonic()
        self._locks: Optional[List[locks.Lock]] = None
        self._sockets: Dict[Optional[str], Sockets] = {}

    def owners(self, target: str, known: Optional[Owner] = None) -> List[Owner]:
        """Return all descriptors of all readable processes that lead to ``target``.

        ``known`` is one of them, by which it is seen whether what was read before is new enough.
        """
        return self._walks.owners(target, known, self._since)

    def locks(self) -> List[locks.Lock]:
        """Return all file locks."""
        if self._locks is None:
            self._locks = locks.read_locks()
        return self._locks

    def sockets(self, pid: int) -> Sockets:
        """Return the sockets of the network namespace ``pid`` is in."""
        space = procfs.link("/proc/%d/ns/net" % pid)
        if space not in self._sockets:
            self._sockets[space] = Sockets(pid)
        return self._sockets[space]
