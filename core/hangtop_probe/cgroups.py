"""What the cgroup of a process does to it: holds it frozen, or gives it less CPU than it wants.

Sources: Documentation/admin-guide/cgroup-v2.rst (cpu.max, cpu.stat, cgroup.events) and, for version
1, Documentation/scheduler/sched-bwc.rst (cpu.cfs_quota_us) and freezer-subsystem.rst of Linux.
"""

from __future__ import annotations

import os
from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

from . import procfs

ROOT = "/sys/fs/cgroup"
_ROOTS_V2 = ("", "/unified")
_ENOUGH = 20
"""Periods, of mostly 100 ms, of which a share means something."""


class Held(NamedTuple):
    """How a CPU quota has held its cgroup back since that was made."""

    periods: int
    throttled: int
    """Periods in which it had used up its quota before their end."""

    def share(self, before: "Optional[Held]") -> Optional[float]:
        """Return the share of periods in which it was held back since ``before``."""
        periods, throttled = self
        if before is not None and before.periods <= periods:
            periods, throttled = periods - before.periods, throttled - before.throttled
        return round(throttled / periods, 2) if periods >= _ENOUGH else None


def read(pid: int, root: str = ROOT) -> Tuple[Dict[str, Any], Optional[Held]]:
    """Return fields of model.Process, and what its tightest CPU quota has done."""
    groups = procfs.parse_cgroup(procfs.read("/proc/%d/cgroup" % pid) or b"")
    path = groups.get("", "/")
    if path == "/":
        path = next((groups[c] for c in ("memory", "cpu", "freezer") if c in groups), path)
    cores, folder = _quota(groups, root)
    fields = {"cgroup": path, "frozen": _frozen(groups, root)}
    fields.update(cpu_quota=cores, cpu_quota_of=folder)
    return fields, _held(folder) if folder is not None else None


def _frozen(groups: Mapping[str, str], root: str) -> bool:
    """cgroup.events of version 2, freezer.state of version 1."""
    if "" in groups:
        for below in _ROOTS_V2:
            events = procfs.read(root + below + groups[""] + "/cgroup.events")
            if events and b"frozen 1" in events:
                return True
    if "freezer" in groups:
        state = procfs.read(root + "/freezer" + groups["freezer"] + "/freezer.state")
        return bool(state and state.strip() in (b"FROZEN", b"FREEZING"))
    return False


def _quota(groups: Mapping[str, str], root: str) -> Tuple[Optional[float], Optional[str]]:
    """Return the fewest cores that a group or one above it allows, and its directory."""
    found: Tuple[Optional[float], Optional[str]] = (None, None)
    tops = [(root + "/cpu", groups["cpu"])] if "cpu" in groups else []
    tops += [(root + below, groups[""]) for below in _ROOTS_V2 if "" in groups]
    for top, path in tops:
        while True:
            cores = _cores(top + path)
            if cores is not None and (found[0] is None or cores < found[0]):
                found = cores, (top + path).rstrip("/")
            if path in ("", "/"):
                break
            path = os.path.dirname(path)
    return found


def _cores(folder: str) -> Optional[float]:
    words = (procfs.read(folder + "/cpu.max", 128) or b"").split()
    if not words:
        quota = procfs.read(folder + "/cpu.cfs_quota_us", 64)
        words = [quota or b"", procfs.read(folder + "/cpu.cfs_period_us", 64) or b""]
    try:
        quota_us, period_us = int(words[0]), int(words[1])
    except (IndexError, ValueError):
        return None
    return round(quota_us / period_us, 3) if quota_us > 0 and period_us > 0 else None


def _held(folder: str) -> Optional[Held]:
    stat = procfs.read(folder + "/cpu.stat", 4096) or b""
    pairs = dict(line.split(b" ", 1) for line in stat.split(b"\n") if b" " in line)
    try:
        return Held(int(pairs[b"nr_periods"]), int(pairs[b"nr_throttled"]))
    except (KeyError, ValueError):
        return None
