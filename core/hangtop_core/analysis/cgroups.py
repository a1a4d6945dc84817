"""Which cgroups a process is in, and what they have to tell about it: pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.text.clean import clean, size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hangtop_core.model.node.cgroups import Cgroup
    from hangtop_core.model.snapshot import Node, Process

SHORT = 20
"""Percent of the time in which nothing ran for want of memory; healthy groups show 0."""
REREAD = 1000
"""Pages, of 4 KiB mostly, that are read again from which that is a shortage."""
WAITS = 50
"""Percent of the time in which nothing ran for want of a disk, or something for want of a CPU,
from which that is worth a word: many healthy jobs read and compute as much as they can."""
_VERSION_1 = "/sys/fs/cgroup/memory/"
"""Where groups of version 1 that limit memory are mounted."""
_NEARLY = 0.95
"""Share of a limit at which there is next to nothing left; cached files count, too."""


def of(node: Node | None, process: Process) -> tuple[Cgroup, ...]:
    """The groups that a process is in, its own ones first, then those above."""
    found = [
        one
        for one in (node.cgroups if node is not None else ())
        if any(f"{own}/".startswith(f"{one.folder}/") for own in process.cgroup_folders)
    ]
    return tuple(sorted(found, key=lambda one: -len(one.folder)))


def rereads(groups: tuple[Cgroup, ...]) -> Cgroup | None:
    """The limited one that is full, and reads what was taken from it again and again; or None."""
    most = limited(groups)
    full = most is not None and (most.memory_current or 0) >= _NEARLY * (most.limit or 0)
    return most if most is not None and full and most.reread >= REREAD else None


def limited(groups: tuple[Cgroup, ...]) -> Cgroup | None:
    """The one with the lowest limit of memory; None where none has one."""
    return min(
        (one for one in groups if one.limit is not None), key=lambda g: g.limit or 0, default=None
    )


def memory_text(group: Cgroup) -> str:
    """`499 MiB of 500 MiB (memory.max) used, at its limit 12 times`; empty where nothing is."""
    parts = []
    if group.limit is not None:
        most = (
            "memory.limit_in_bytes" if f"{group.folder}/".startswith(_VERSION_1) else "memory.max"
        )
        name = "memory.high" if group.limit == group.memory_high else most
        used = size(group.memory_current) if group.memory_current is not None else "?"
        parts.append(f"{used} of {size(group.limit)} ({name}) used, cached files included")
    told, new = group.counts, group.before or group.counts
    for text, count, before in (
        ("at its limit {} times", told.at_max, new.at_max),
        ("slowed down over memory.high {} times", told.at_high, new.at_high),
        ("{} pages taken and read again", told.refaults, new.refaults),
        ("out of memory {} times", told.ooms, new.ooms),
        ("{} of its processes killed for want of memory", told.oom_kills, new.oom_kills),
    ):
        if count:
            since = f" ({count - (before or 0)} while watched)" if count > (before or 0) else ""
            words = text.format(count) if count != 1 else text.format(1).replace("times", "time")
            parts.append(words + since)
    return ", ".join(parts)


def pressure_text(group: Cgroup) -> str:
    """`nothing ran in 30% of the last 10 s for want of memory`; empty where that is rare."""
    parts = []
    if group.memory_full:
        parts.append(f"nothing ran in {group.memory_full}% of the last 10 s for want of memory")
    if group.io_full:
        begin, span = ("", "") if parts else ("nothing ran ", " of the last 10 s")
        parts.append(f"{begin}in {group.io_full}%{span} for want of a disk")
    if group.cpu_some:
        span = "" if parts else " of the last 10 s"
        parts.append(f"something waited for a CPU in {group.cpu_some}%{span}")
    return ", ".join(parts)


def describe(group: Cgroup) -> str:
    """All that is known of one group, in one line."""
    told = "; ".join(part for part in (memory_text(group), pressure_text(group)) if part)
    return clean(f"cgroup {group.folder}: {told or 'no limit of memory, no shortage'}", 400)


def telling(groups: Iterable[Cgroup]) -> Iterator[Cgroup]:
    """Those that may have to do with what its processes lack."""
    for one in groups:
        full = one.limit is not None and (one.memory_current or 0) >= _NEARLY * one.limit
        short = one.memory_full >= SHORT // 2 or max(one.io_full, one.cpu_some) >= WAITS
        if short or one.slowed or one.killed or (full and one.counts.at_max):
            yield one
