"""What cgroups let processes have, and how often that was too little; nouns like `model`'s.

Files of Linux, Documentation/admin-guide/cgroup-v2.rst; of version 1 what stands in brackets.
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
    """How often something happened in a group since it was made; memory.events."""

    oom_kills: Count | None = None
    """Processes of it that were killed for want of memory (memory.oom_control); None where that is
    not counted, as in a hierarchy without memory."""
    ooms: Count = 0
    """Times its limit was reached and nothing could be given back. Not of version 1."""
    at_max: Count = 0
    """Times its use was about to go over the limit (memory.failcnt)."""
    at_high: Count = 0
    """Times its processes were held up because it was over memory.high. Not of version 1."""
    refaults: Count = 0
    """Pages that were taken from it, and had to be read again soon (memory.stat). Only where it was
    at a limit."""


class Cgroup(Struct, frozen=True, gc=False):
    """One group that has a limit of memory, or something to tell."""

    folder: Text
    memory_max: Count | None = None
    """Bytes (memory.limit_in_bytes); None for no limit."""
    memory_high: Count | None = None
    """Bytes; over it processes are slowed down until memory was given back. Not of version 1."""
    memory_current: Count | None = None
    """Bytes, cached files included, to a fiftieth of the limit. Only where there is one."""
    counts: Counts = Counts()
    memory_full: Percent = 0
    """Percent of the last 10 s in which nothing in it could run for want of memory."""
    io_full: Percent = 0
    """The same for want of a disk."""
    cpu_some: Percent = 0
    """Percent of the last 10 s in which something in it had to wait for a CPU."""
    before: Counts | None = None
    """The counts when it was first seen; set here, never by the node."""
    oom_killed_at: float | None = None
    """When the number of killed processes was last seen to grow; set here."""

    @property
    def killed(self) -> int:
        """Processes killed since it was first seen."""
        return (self.counts.oom_kills or 0) - ((self.before or self.counts).oom_kills or 0)

    @property
    def slowed(self) -> int:
        """Times it was over memory.high since it was first seen."""
        return self.counts.at_high - (self.before or self.counts).at_high

    @property
    def reread(self) -> int:
        """Pages read again since it was first seen; of one that was not read since, in all."""
        before = self.before or Counts()
        return self.counts.refaults - (before.refaults if before != self.counts else 0)

    @property
    def limit(self) -> int | None:
        """The lower one of its limits, bytes."""
        return min((m for m in (self.memory_max, self.memory_high) if m is not None), default=None)


def follow(known: Iterable[Cgroup], fields: MutableMapping[str, Any], at: float) -> None:
    """Put what is known of groups before into the new ones among the changed fields of a node."""
    if "cgroups" not in fields:
        return
    old = {one.folder: one for one in known}
    fields["cgroups"] = tuple(_followed(old.get(one.folder), one, at) for one in fields["cgroups"])


def _followed(old: Cgroup | None, new: Cgroup, at: float) -> Cgroup:
    if old is None:
        return msgspec.structs.replace(new, before=new.counts, oom_killed_at=None)
    grew = (new.counts.oom_kills or 0) > (old.counts.oom_kills or 0)
    return msgspec.structs.replace(
        new, before=old.before, oom_killed_at=at if grew else old.oom_killed_at
    )
