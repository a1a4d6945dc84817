"""Read shortage of memory, CPU and disk in the cgroups of reported processes, and its effects.

Sources: Documentation/admin-guide/cgroup-v2.rst (memory.max, memory.high, memory.events and the
files of pressure) and, for version 1, Documentation/admin-guide/cgroup-v1/memory.rst
(memory.limit_in_bytes, memory.failcnt, and oom_kill of memory.oom_control, Linux 4.13) of Linux.
Version 1 has no pressure; where both are mounted, groups of version 2 have it although version 1
has the memory.
"""

from __future__ import annotations

import os
import re
import time
from typing import Any, Dict, Iterable, List, Optional

from ..proc import procfs
from . import cgroups

MAX_GROUPS = 64
"""Most groups read; processes of one job mostly share one or have one each."""
_KEPT_S = 120.0
"""Seconds for which a group is still read after its last reported process has exited."""
_UNLIMITED = 1 << 60
"""The value for no limit in version 1: the largest number of whole pages."""
_STEP = 50
"""Memory is told in parts of the limit, pressure in steps of 5 %: what is meant stays equal."""
_PRESSURE = re.compile(rb"^(some|full) avg10=(\d+)", re.M)
_REFAULT = "workingset_refault"
"""Of memory.stat: in all, and of files and other memory from Linux 5.9 on."""
_EVENTS = (("oom_kill", "oom_kills"), ("oom", "ooms"), ("max", "at_max"), ("high", "at_high"))


class Groups:
    """The groups of reported processes, and their readings."""

    def __init__(self, where: Optional[cgroups.Places] = None) -> None:
        self._where = cgroups.places_here() if where is None else where
        self._seen: Dict[str, float] = {}

    def read(self, folders: Iterable[str]) -> List[Dict[str, Any]]:
        """Return the groups of these directories, and ancestors with relevant values."""
        now, own = time.monotonic(), frozenset(folders)
        self._seen.update((folder, now) for folder in self._with_those_above(own))
        self._seen = {f: at for f, at in self._seen.items() if now - at < _KEPT_S}
        newest = sorted(self._seen, key=lambda folder: (-self._seen[folder], -len(folder), folder))
        found = (read(folder) for folder in sorted(newest[:MAX_GROUPS]))
        # Those of processes always: a first kill has to be told from one that was before.
        return [one for one in found if one["folder"] in own or _tells(one)]

    def _with_those_above(self, folders: Iterable[str]) -> Iterable[str]:
        tops = {place.point for place in self._where.values()}
        for folder in folders:
            while True:
                yield folder
                if folder in tops or folder in ("", "/"):
                    break
                folder = os.path.dirname(folder)


def _tells(group: Dict[str, Any]) -> bool:
    return bool(group.keys() - {"folder", "counts"}) or any(group.get("counts", {}).values())


def read(folder: str) -> Dict[str, Any]:
    """Return one group in the form of hangtop_core.model.node.cgroups.Cgroup, without what says
    nothing."""
    found: Dict[str, Any] = {"folder": folder}
    most = _bytes(folder, "memory.max", "memory.limit_in_bytes")
    high = _bytes(folder, "memory.high")
    limits = [one for one in (most, high) if one is not None]
    found.update(memory_max=most, memory_high=high)
    if limits:
        step = max(min(limits) // _STEP, 1)
        current = _bytes(folder, "memory.current", "memory.usage_in_bytes")
        found["memory_current"] = None if current is None else -(-current // step) * step
    found["counts"] = {k: v for k, v in _counts(folder).items() if v or k == "oom_kills"}
    if os.path.exists(folder + "/cgroup.events"):  # the root of all has none: it is the node
        for name, kind in (("memory", b"full"), ("io", b"full"), ("cpu", b"some")):
            shares = dict(_PRESSURE.findall(procfs.read("%s/%s.pressure" % (folder, name)) or b""))
            found["%s_%s" % (name, kind.decode())] = int(shares.get(kind, 0)) // 5 * 5
    return {name: value for name, value in found.items() if value}


def _bytes(folder: str, *names: str) -> Optional[int]:
    """Return the value of the first of these files that exists; None for no limit."""
    for name in names:
        data = procfs.read("%s/%s" % (folder, name), 64)
        if data is not None:
            value = procfs.number(data.strip())
            return None if value is None or value >= _UNLIMITED else value
    return None


def _counts(folder: str) -> Dict[str, int]:
    events = procfs.read(folder + "/memory.events", 4096)
    if events is not None:
        told = cgroups.pairs(events)
        found = {field: told[name] for name, field in _EVENTS if name in told}
    else:
        control = cgroups.pairs(procfs.read(folder + "/memory.oom_control", 4096))
        found = {"oom_kills": control["oom_kill"]} if "oom_kill" in control else {}
        failed = procfs.number((procfs.read(folder + "/memory.failcnt", 64) or b"").strip())
        found["at_max"] = failed or 0
    if found.get("at_max") or found.get("at_high"):
        told = cgroups.pairs(procfs.read(folder + "/memory.stat", 1 << 14))
        found["refaults"] = sum(n for name, n in told.items() if name.startswith(_REFAULT))
    return found
