"""Memory and CPU limits of cgroups, and how often processes ran into them.

Files of Linux, Documentation/admin-guide/cgroup-v2.rst; names of version 1 are in brackets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta, Struct

from hangtop_core.text.clean import Count, Text

if TYPE_CHECKING:
    from collections.abc import Iterable, MutableMapping

Percent = Annotated[int, Meta(ge=0, le=100)]


class Counts(Struct, frozen=True, gc=False):
    """How often something happened in a cgroup since it was created; memory.events."""

    oom_kills: Count | None = None
    """Its processes that the OOM killer ended (memory.oom_control); None where this is
    not counted, as in a hierarchy without memory."""
    ooms: Count = 0
    """Times its limit was reached and nothing could be reclaimed. Not in version 1."""
    at_max: Count = 0
    """Times its use was about to exceed the limit (memory.failcnt)."""
    at_high: Count = 0
    """Times its processes were throttled because it was over memory.high. Not in version 1."""
    refaults: Count = 0
    """Pages that were reclaimed from it and soon read again (memory.stat). Only where it was at a
    limit."""


class Cgroup(Struct, frozen=True, gc=False):
    """A cgroup that has a memory limit, or something to report."""

    folder: Text
    memory_max: Count | None = None
    """Bytes (memory.limit_in_bytes); None for no limit."""
    memory_high: Count | None = None
    """Bytes above which processes are throttled until memory is reclaimed. Not in version 1."""
    memory_current: Count | None = None
    """Bytes, cached files included, to a fiftieth of the limit. Only where there is a limit."""
    counts: Counts = Counts()
    memory_full: Percent = 0
    """Percent of the last 10 s in which nothing in it could run because memory was short."""
    io_full: Percent = 0
    """Percent of the last 10 s in which nothing in it could run for I/O."""
    cpu_some: Percent = 0
    """Percent of the last 10 s in which a process in it waited for a CPU."""
    before: Counts | None = None
    """The counts when the cgroup was first seen; set here, never by the node."""
    oom_killed_at: float | None = None
    """When the number of killed processes was last seen to grow; set here."""

    @property
    def killed(self) -> int:
        """Return the number of processes killed since the cgroup was first seen."""
        return (self.counts.oom_kills or 0) - ((self.before or self.counts).oom_kills or 0)

    @property
    def slowed(self) -> int:
        """Return how often it was over memory.high since it was first seen."""
        return self.counts.at_high - (self.before or self.counts).at_high

    @property
    def reread(self) -> int:
        """Return the pages reread since it was first seen; in all if the counts are the first."""
        before = self.before or Counts()
        return self.counts.refaults - (before.refaults if before != self.counts else 0)

    @property
    def limit(self) -> int | None:
        """Return the lower one of its limits in bytes."""
        return min((m for m in (self.memory_max, self.memory_high) if m is not None), default=None)


def follow(known: Iterable[Cgroup], fields: MutableMapping[str, Any], at: float) -> None:
    """Copy the history of known cgroups to the new ones among a node's changed fields."""
    if "cgroups" not in fields:
        return
    old = {group.folder: group for group in known}
    fields["cgroups"] = tuple(
        _followed(old.get(group.folder), group, at) for group in fields["cgroups"]
    )


def _followed(old: Cgroup | None, new: Cgroup, at: float) -> Cgroup:
    if old is None:
        return msgspec.structs.replace(new, before=new.counts, oom_killed_at=None)
    grew = (new.counts.oom_kills or 0) > (old.counts.oom_kills or 0)
    return msgspec.structs.replace(
        new, before=old.before, oom_killed_at=at if grew else old.oom_killed_at
    )
