"""One process of the node as the process table keeps it, and when it is to be looked at again."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Dict, FrozenSet, List, Optional, Sequence, Set, Tuple

from ..files import fileposition
from ..net import flows
from ..proc import activity, procfs
from . import facts

if TYPE_CHECKING:
    from ..node.cgroups import Held
    from ..wire.guard import Guard

Identity = Tuple[int, int]
"""pid and start time: a pid alone may have been given to another process."""

_YOUNG = frozenset([1, 2, 3, 5, 8, 12, 16, 20, 30])
"""Passes after the first at which a young process is read again."""
_GROWN_S = 60.0
"""Seconds after its start from which a process that is seen for the first time is not young."""


class Entry:
    """One process of the node that is no kernel thread."""

    def __init__(self, stat: procfs.Stat, memory: Optional[Guard] = None) -> None:
        self.stat = stat
        self.facts = facts.Facts()
        self.age = 0
        self.grown = procfs.age(stat) > _GROWN_S
        self.mine = True
        self.threads: FrozenSet[str] = frozenset()
        self.activity = activity.Activity(stat.pid)
        self.flows = flows.Flows(stat.pid, guard=memory)
        self.slow: Dict[str, Any] = {}
        self.file: Optional[fileposition.Position] = None
        self.held: Optional[Held] = None
        """The throttling by its CPU quota when that was last sent."""
        self.versions: Dict[str, str] = {}
        self.described = -1
        self.tracer: Tuple[int, Optional[str]] = (0, None)
        self.dumping_core = False
        self.by_us = False
        self.state = stat.state
        """The last state that was not a tool of ours at work."""

    @property
    def identity(self) -> Identity:
        """Return pid and start time."""
        return self.stat.pid, self.stat.start

    def look_at_file(
        self, threads: Sequence[activity.ThreadRow], guard: Guard
    ) -> Optional[Dict[str, Any]]:
        """Return the position in the file that the main thread, the first one, reads or writes."""
        if self.file is None:
            self.file = fileposition.Position(self.stat.pid, guard)
        return self.file.look(threads[0] if threads else None)

    def look_at_flows(self, threads: Sequence[activity.ThreadRow]) -> List[List[int]]:
        """Return the progress of its threads on connections, see `flows.Flows.look`."""
        environ = self.facts.environ or {}
        return self.flows.look(threads, environ.get("MASTER_PORT", ""))

    @property
    def young(self) -> bool:
        """Whether this pass reads the process again because it is young."""
        return not self.grown and self.age in _YOUNG


def told_apart(stat: procfs.Stat) -> Tuple[str, int, int]:
    """Return the fields that change when a process runs another program or gets another parent."""
    return stat.comm, stat.ppid, stat.image


def own_processes(entries: Dict[int, Entry]) -> FrozenSet[int]:
    """Return the probe's own pid, what started it, and the tools it runs."""
    own: Set[int] = {os.getpid()}
    pid = os.getppid()
    while pid > 1 and pid not in own:
        own.add(pid)
        entry = entries.get(pid)
        pid = entry.stat.ppid if entry else 0
    own.update(pid for pid, entry in entries.items() if entry.stat.ppid == os.getpid())
    return frozenset(own)


def tracer_of(status: bytes) -> Tuple[int, Optional[str]]:
    """Return pid and name of the tracer of a process, pid 0 where there is none."""
    tracer = procfs.value_of(status, b"TracerPid") or 0
    if not tracer:
        return 0, None
    stat = procfs.read_stat(tracer)
    return tracer, stat.comm if stat else None
