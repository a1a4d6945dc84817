"""GPUs and network ports of this node as parts of `watch`: what changed since the last piece."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Dict, Optional

from ..wire.guard import Guard, Hanging
from . import nics

if TYPE_CHECKING:
    from .gpus import Gpus

    Fields = Dict[str, Any]

PORTS_EVERY = 5.0
"""Seconds between two readings of network ports: some drivers ask their firmware for counters."""


class Hardware:
    """Remembers what was sent of GPUs and ports, and gives what is new."""

    def __init__(self, gpus: Gpus, root: str = nics.SYS) -> None:
        self._gpus, self._root = gpus, root
        self._guard = Guard(limit=1)
        self._ports: Dict[str, Fields] = {}
        self._due = 0.0
        self._sent: Dict[str, Dict[str, Fields]] = {}
        self._about: Optional[Fields] = None

    def restart(self) -> None:
        """Tell everything again."""
        self._sent, self._about = {}, None

    def due(self) -> None:
        """Read the ports with the next piece, however recently they were."""
        self._due = 0.0

    def changes(self) -> Fields:
        """Return what changed: of the driver as a whole, of each GPU, of each port."""
        self._gpus.start()
        self._read_ports()
        found: Fields = {}
        about = dict(self._gpus.about)
        if about != (self._about or {}):
            found["nvml"], self._about = about, about
        gpus = {str(index): fields for index, fields in self._gpus.snapshot().items()}
        for kind, now in (("gpus", gpus), ("nics", self._ports)):
            changed = self._new(kind, now)
            if changed:
                found[kind] = changed
        return found

    def _new(self, kind: str, now: Dict[str, Fields]) -> Dict[str, Fields]:
        sent, changed = self._sent.get(kind, {}), {}
        for name, fields in now.items():
            old = sent.get(name, {})
            new = {k: v for k, v in fields.items() if k not in old or old[k] != v}
            if new:
                changed[name] = new
        for name in set(sent) - set(now):
            changed[name] = {"state": "gone"}
        self._sent[kind] = now
        return changed

    def _read_ports(self) -> None:
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + PORTS_EVERY
        try:
            self._ports = self._guard.call(lambda: nics.read(self._root))
        except Hanging:
            self._ports = {k: dict(v, state="silent") for k, v in self._ports.items()}
