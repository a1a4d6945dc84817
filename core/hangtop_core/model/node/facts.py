"""Facts about a node beside its processes: lines of its kernel log, used-up quotas."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from hangtop_core.text.clean import Count, Text


class KernelLine(Struct, frozen=True, gc=False, array_like=True):
    """One line of the kernel log, and when it was written."""

    at: float
    text: Text


class FullQuota(Struct, frozen=True, gc=False):
    """A quota that is used up, of the user or the group of processes of a node."""

    mount: Text
    uid: int
    """User whose processes the quota keeps from writing."""
    what: Literal["space", "inodes"] = "space"
    limit: Count = 0
    """Limit in bytes or inodes."""
    late: bool = False
    """Whether the soft limit was exceeded for longer than allowed."""
    gid: int | None = None
    """Group that has the quota; None for a quota of the user."""
