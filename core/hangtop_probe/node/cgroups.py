"""Read the effect of a cgroup on a process: freezing, or throttling by a CPU quota.

Sources: Documentation/admin-guide/cgroup-v2.rst (cpu.max, cpu.stat, cgroup.events, cgroup.freeze)
and, for version 1, Documentation/scheduler/sched-bwc.rst (cpu.cfs_quota_us) and
freezer-subsystem.rst of Linux; cgroups(7) and cgroup_namespaces(7) for the place of groups.
"""

from __future__ import annotations

import functools
import os
from typing import Any, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from ..proc import procfs

_ENOUGH = 20
"""Least periods, of mostly 100 ms, for a meaningful share."""


class Held(NamedTuple):
    """Throttling by a CPU quota since its cgroup was made."""

    periods: int
    throttled: int
    """Periods whose quota was used up before their end."""

    def share(self, before: "Optional[Held]") -> Optional[float]:
        """Return the share of throttled periods since ``before``."""
        periods, throttled = self
        if before is not None and before.periods <= periods:
            periods, throttled = periods - before.periods, throttled - before.throttled
        return round(throttled / periods, 2) if periods >= _ENOUGH else None


class Place(NamedTuple):
    """The mount of one cgroup hierarchy."""

    point: str
    root: str
    """The group mounted there, as in /proc/PID/cgroup: `/` unless a container has only a part."""

    def folders(self, path: str) -> Iterator[str]:
        """Yield the directory of a group, then its ancestors; none where it is not visible."""
        if "/.." in self.root or path.startswith("/.."):
            return  # outside of the namespace this process is in
        root = self.root.rstrip("/")
        if path != root and not path.startswith(root + "/"):
            return
        path = path[len(root) :].rstrip("/")
        while path:
            yield self.point + path
            path = os.path.dirname(path).rstrip("/")
        yield self.point


Places = Mapping[str, Place]
"""By controller; version 2 has the key ``''``, as in `procfs.parse_cgroup`."""


def places(mounts: Optional[Iterable[procfs.Mount]] = None) -> Dict[str, Place]:
    """Return the mounts of cgroups, as this process sees them."""
    if mounts is None:
        mounts = procfs.mounts("self")
    found: Dict[str, Place] = {}
    for mount in mounts:
        if mount.fstype == "cgroup2":
            found.setdefault("", Place(mount.point, mount.root))
        elif mount.fstype == "cgroup":
            for controller in mount.options.split(","):
                found.setdefault(controller, Place(mount.point, mount.root))
    return found


@functools.lru_cache(maxsize=1)
def places_here() -> Places:
    """Return the mounts of cgroups, read once, since they stay."""
    return places()


def read(pid: int, where: Optional[Places] = None) -> Tuple[Dict[str, Any], Optional[Held]]:
    """Return fields of model.Process, and the throttling by its tightest CPU quota."""
    where = places_here() if where is None else where
    groups = procfs.parse_cgroup(procfs.read("/proc/%d/cgroup" % pid) or b"")
    path = groups.get("", "/")
    if path == "/":
        path = next((groups[c] for c in ("memory", "cpu", "freezer") if c in groups), path)
    cores, folder = _quota(groups, where)
    frozen, by = _frozen(groups, where)
    fields = {"cgroup": path, "frozen": frozen, "frozen_by": by}
    fields.update(cpu_quota=cores, cpu_quota_of=folder, cgroup_folders=_own(groups, where))
    return fields, _held(folder) if folder is not None else None


def above(groups: Mapping[str, str], controller: str, where: Places) -> List[str]:
    """Return the directories of the group of one controller and of its ancestors."""
    place, path = where.get(controller), groups.get(controller)
    return [] if place is None or path is None else list(place.folders(path))


def _own(groups: Mapping[str, str], where: Places) -> List[str]:
    """Return the directories with memory limits and pressure; with version 2 they are the same."""
    found = (above(groups, controller, where)[:1] for controller in ("", "memory"))
    return [folder for folders in found for folder in folders]


def _frozen(groups: Mapping[str, str], where: Places) -> Tuple[bool, Optional[str]]:
    """Return whether the group is frozen, and the directory of the group that was frozen."""
    folders = above(groups, "", where)
    if folders and b"frozen 1" in (procfs.read(folders[0] + "/cgroup.events", 4096) or b""):
        return True, _first(folders, "/cgroup.freeze")
    folders = above(groups, "freezer", where)
    if folders:
        state = (procfs.read(folders[0] + "/freezer.state", 64) or b"").strip()
        if state in (b"FROZEN", b"FREEZING"):
            return True, _first(folders, "/freezer.self_freezing")
    return False, None


def _first(folders: Iterable[str], name: str) -> Optional[str]:
    ones = (folder for folder in folders if (procfs.read(folder + name, 64) or b"")[:1] == b"1")
    return next(ones, None)


def _quota(groups: Mapping[str, str], where: Places) -> Tuple[Optional[float], Optional[str]]:
    """Return the lowest limit in cores of a group and its ancestors, and the directory with it."""
    found: Tuple[Optional[float], Optional[str]] = (None, None)
    for controller in ("cpu", ""):
        for folder in above(groups, controller, where):
            cores = _cores(folder)
            if cores is not None and (found[0] is None or cores < found[0]):
                found = cores, folder
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
    stat = pairs(procfs.read(folder + "/cpu.stat", 4096))
    if "nr_periods" not in stat or "nr_throttled" not in stat:
        return None
    return Held(stat["nr_periods"], stat["nr_throttled"])


def pairs(data: Optional[bytes]) -> Dict[str, int]:
    """Parse lines of `name number`, as in cpu.stat and memory.events; other lines are left out."""
    found: Dict[str, int] = {}
    for line in (data or b"").split(b"\n"):
        name, _, value = line.partition(b" ")
        amount = procfs.number(value)
        if amount is not None:
            found[procfs.text(name)] = amount
    return found
