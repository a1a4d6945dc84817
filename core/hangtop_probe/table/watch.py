"""The `watch` request: changes on a node, as often as the CPU budget allows, rarely while idle."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Optional, Set, Tuple

from ..files import filesystems, quotas
from ..node import cgroupload, kernellog, node
from ..node.wallclock import WallClock
from ..proc import procfs
from ..secrets import mask
from ..wire.guard import Guard, Hanging
from ..wire.requests import clock
from .delta import Differ, Steady, Strings
from .exits import Exits

if TYPE_CHECKING:
    from ..gpu.hardware import Hardware
    from ..proc.activity import ThreadRow
    from .table import Table

BUDGET = 0.006
"""Fraction of one core that passes may cost, unless the head asks for less: the probe's other
threads have the rest of 1%."""
_FREE_S = 10.0
"""Seconds at the start in which passes are as frequent as asked, since a new watch costs most."""
_MAX_STRINGS = 20000
"""Size at which the table of texts starts anew: futex addresses come and go."""
_MAX_INTERVAL = 30.0
_STARTED = time.monotonic()
HELD_S = 30.0
"""Seconds for which minor changes are not sent, and then until a piece is due. In a hung job
nothing else changes, and a thousand nodes must cost next to nothing then."""
MAX_REST_S = 60.0
"""Longest pause of an idle node, in seconds: the head learns up to that much later, and some
seconds, that the node is idle."""
_TELLING = ("set", "gone", "node", "strings", "nvml", "gpus")
"""Parts of a piece that mean activity."""
_MINOR = frozenset({"load1", "memory_available", "shm_free", "processes", "python_processes"})
"""Facts of the node whose changes are minor."""
_QUIET_SHARE, _SOON_S = 0.25, 20.0
"""An idle node sends nothing for this share of its idle time, or for the idle time above `_SOON_S`
seconds if that is longer, up to `rest` seconds. A thousand idle nodes cost the head CPU time, and
the delay is short compared with the time they have been idle."""
_SHORT_S = 1.0
"""Pauses up to this, in seconds, are not announced: the head waits far longer for a piece."""


def quiet_s(still: float, rest: float) -> float:
    """Return the seconds to send nothing after ``still`` seconds without a change."""
    return min(max(still * _QUIET_SHARE, still - _SOON_S), rest)


class Watch:
    """Makes the pieces of one `watch` request."""

    def __init__(
        self,
        processes: Table,
        interval: float,
        machine: Hardware,
        budget: float = BUDGET,
        rest: float = 0.0,
    ) -> None:
        """``rest``: longest time in seconds between two pieces of an idle node."""
        self.table = processes
        self.hardware = machine
        self.interval = min(max(interval, 0.1), 60.0)
        self._budget = min(max(budget, 0.0001), BUDGET)
        processes.stalled.share = self._budget / 3
        self._guard = Guard()
        self._quotas: List[quotas.Place] = []
        self._kernel = kernellog.KernelLog()
        self._groups = cgroupload.Groups()
        self._strings = Strings()
        self._differ = Differ()
        self._exits = Exits()
        self._steady = Steady()
        self._rest = min(max(rest, 0.0), MAX_REST_S)
        self._told_at = self._sent_at = time.monotonic()
        self._promised = 0.0
        self._node: Dict[str, Any] = {}
        self._facts: Dict[str, Any] = {}
        self._passes = 0
        self._clock = WallClock()
        self._read_at: Dict[str, float] = {}
        self._cost = 0.0
        self._cpu = self._spent()

    def piece(self) -> Dict[str, Any]:
        """Make a pass and return what changed since the last one."""
        self._note_cost()
        if len(self._strings) > _MAX_STRINGS:
            self.restart()
        at = clock()
        self.table.scan()
        processes = self.table.processes()
        folders = set()
        self._steady.forget(processes)
        for pid, fields in processes.items():
            rows = self._steady.rows(pid, fields["role"] == "rank", fields["threads"])
            fields["threads"] = [self._row(row) for row in rows]
            folders.update(fields.get("cgroup_folders", ()))
        whole = self._differ.whole
        minor = (self._is_awaited and self._is_due("minor", HELD_S)) or whole
        delta = self._differ.delta(processes, minor)
        self._note_exits(delta.gone, processes)
        parts = {
            "set": delta.set,
            "gone": delta.gone,
            "node": self._node_changes(minor, folders, processes),
        }
        parts.update(self.hardware.changes())
        parts["strings"] = self._strings.take_new()
        piece = {"at": at, **{name: part for name, part in parts.items() if part}}
        by = self._clock.set_by()
        if by:
            piece["clock_set"] = by
        if whole:
            piece["whole"] = True
        if minor:
            piece["probe_cpu"] = probe_cpu()
        self._passes += 1
        if not minor and any(parts.get(name) for name in _TELLING):
            self._told_at = time.monotonic()
        return piece

    def _note_exits(self, gone: Dict[str, Dict[str, Any]], processes: Dict[int, Any]) -> None:
        """Add exit codes of processes that have exited, where the kernel knows them."""
        for pid, told in gone.items():
            code = self._exits.status(int(pid))
            if code is not None:
                told.setdefault("exit_code", code)
        self._exits.follow(processes)

    def next_piece(self) -> Optional[Dict[str, Any]]:
        """Make a pass and return its piece; None if it is empty within an announced pause."""
        piece, now = self.piece(), time.monotonic()
        if piece.keys() <= {"at"} and not self._is_awaited:
            return None
        quiet = quiet_s(now - self._told_at, self._rest)
        self._sent_at, self._promised = now, max(self.pause, quiet)
        if self._promised > _SHORT_S:
            piece["pause"] = round(self._promised, 2)
        return piece

    @property
    def _is_awaited(self) -> bool:
        """Whether the announced pause is over."""
        return time.monotonic() - self._sent_at >= self._promised - self.interval / 2

    def restart(self) -> None:
        """Make the next piece a whole one."""
        self._strings.restart()
        self._differ.restart()
        self.hardware.restart()
        self._node = {}

    def _row(self, row: ThreadRow) -> List[Optional[int]]:
        number = self._strings.number
        return [
            row.tid,
            number(row.name),
            number(row.state),
            number(row.wchan),
            number(row.syscall),
            row.fd,
            number(row.futex),
        ]

    def _note_cost(self) -> None:
        """Record the CPU time since the last pass began: pass, encoding, guarded reads."""
        now = self._spent()
        spent, self._cpu = now - self._cpu, now
        # The first pass reads every process of the node, which is not the usual cost.
        self._cost = 0.7 * self._cost + 0.3 * spent if self._passes > 2 else spent

    def _spent(self) -> float:
        return time.thread_time() + self.table.guarded_cpu() + self._guard.cpu_s

    @property
    def pause(self) -> float:
        """Seconds to the next pass: the asked interval, or longer where that costs too much."""
        if self._passes * self.interval <= _FREE_S:
            return self.interval
        needed = self._cost / self._budget
        return min(max(self.interval, needed), max(_MAX_INTERVAL, self.interval))

    def _node_changes(self, minor: bool, folders: Set[str], pids: Iterable[int]) -> Dict[str, Any]:
        if self._is_due("mounts", 60.0):
            self._add_mounts()
            self._facts["addresses"] = node.addresses()
        if self._is_due("memory", 5.0):
            self._facts.update(node.memory())
            self._facts["python_processes"] = self._python_processes()
            full = self._full_mounts()
            self._facts["full_mounts"] = list(full)
            self._facts["no_inodes"] = [one for one, what in full.items() if what == "inodes"]
            self._facts["full_quotas"] = self._full_quotas(pids)
            self._facts["cgroups"] = self._groups.read(folders)
        self._facts["kernel_lines"] = self._kernel.read()
        self._facts["processes"] = self.table.total
        self._facts["other_users"] = self.table.other_users()
        new = {
            k: v
            for k, v in self._facts.items()
            if k not in self._node or (self._node[k] != v and (minor or k not in _MINOR))
        }
        self._node.update(new)
        return new

    def _is_due(self, what: str, seconds: float) -> bool:
        """Whether to read facts again, by the clock, since passes may be far apart."""
        now = time.monotonic()
        due = not self._node or now - self._read_at.get(what, -seconds) >= seconds
        if due:
            self._read_at[what] = now
        return due

    def _add_mounts(self) -> None:
        """Read mounts and quotas; guarded, as mounting or unmounting locks the mount table."""
        try:
            self._facts["mounts"] = self._guard.call(filesystems.mounts)
            self._quotas = self._guard.call(lambda: quotas.places(procfs.mounts("self")))
        except Hanging:
            self._facts.setdefault("mounts", [])

    def _full_mounts(self) -> Dict[str, str]:
        mounts = self._facts.get("mounts", [])
        try:
            return self._guard.call(lambda: filesystems.full_mounts(mounts))
        except Hanging:
            return {}

    def _full_quotas(self, pids: Iterable[int]) -> List[Dict[str, Any]]:
        some = self._quotas
        try:
            return self._guard.call(lambda: quotas.used_up(some, pids)) if some else []
        except Hanging:
            return []

    def _python_processes(self) -> List[str]:
        found = self.table.python_processes()[:20]
        return [
            "pid %d: %s" % (pid, " ".join(mask.mask_arguments(cmdline))[:500])
            for pid, cmdline in found
        ]


def probe_cpu() -> float:
    """Return the fraction of one core that the probe and its tools used since it started."""
    times: Tuple[float, ...] = tuple(os.times())
    return round(sum(times[:4]) / max(1.0, time.monotonic() - _STARTED), 4)
