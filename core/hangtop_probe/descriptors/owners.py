"""Find the processes with a file open: one walk over /proc/PID/fd of all processes, briefly shared.

A walk costs 4 µs for each descriptor of the node, most of it in the kernel: 0.1 s where there are
25,000. Requests come together, for several ranks of a node, for what rules ask and what a person
asks, so they share one for `KEPT_S`, and with it nothing else: locks, sockets and what a descriptor
is are read anew. What a process has opened since is noticed by its own descriptor, which the walk
has not seen; who has closed one since is left out.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Callable, Dict, List, NamedTuple, Optional

from ..proc import procfs

MAX_DESCRIPTORS = 1 << 16
"""Most descriptors read of one process: it may have a million."""
KEPT_S = 3.0
"""Seconds for which a walk is shared."""


class Owner(NamedTuple):
    """A descriptor of some process that leads to a file, pipe or socket."""

    pid: int
    fd: int


Found = Dict[str, List[Owner]]


def walk() -> Found:
    """Return all descriptors of all readable processes, by target."""
    found: Found = {}
    for pid in procfs.numbers(procfs.PROC):
        base = os.fsencode("%s/%d/fd/" % (procfs.PROC, pid))
        try:
            names = os.listdir(base)
        except OSError:
            continue
        for name in names[:MAX_DESCRIPTORS]:
            try:
                link = os.readlink(base + name)
            except OSError:
                continue
            if not link.startswith(b"anon_inode:"):
                target = procfs.text(link)[: procfs.MAX_PATH]
                found.setdefault(target, []).append(Owner(pid, int(name)))
    return found


class Walks:
    """The newest walk, for all requests of a probe; forgotten when it is too old."""

    def __init__(self, kept_s: float = KEPT_S, walk: Callable[[], Found] = walk) -> None:
        self.count = 0
        """Walks that were made."""
        self._kept_s = kept_s
        self._walk = walk
        self._lock = threading.Lock()
        self._found: Optional[Found] = None
        self._began = 0.0

    def owners(self, target: str, known: Optional[Owner] = None, since: float = 0.0) -> List[Owner]:
        """Return the owners of descriptors that lead to ``target``.

        ``known`` is one that has it open now: a walk from before ``since`` (time.monotonic) that
        has not seen it is not new enough.
        """
        with self._lock:
            found = self._newest()
            if known is not None and known not in found.get(target, ()) and self._began < since:
                found = self._anew()
            some = sorted(found.get(target, ()))
        return [one for one in some if procfs.link("/proc/%d/fd/%d" % one) == target]

    def _newest(self) -> Found:
        if self._found is None or time.monotonic() - self._began > self._kept_s:
            return self._anew()
        return self._found

    def _anew(self) -> Found:
        self._began = time.monotonic()
        self._found = self._walk()
        self.count += 1
        timer = threading.Timer(self._kept_s, self._forget, (self._began,))
        timer.daemon = True
        timer.start()
        return self._found

    def _forget(self, began: float) -> None:
        """Free the walk, unless there is a newer one."""
        with self._lock:
            if self._began == began:
                self._found = None


SHARED = Walks()
"""The walks of this probe."""
