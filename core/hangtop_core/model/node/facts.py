"""What a node tells beside its processes: lines of its kernel log, quotas that are used up."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from hangtop_core.text.clean import Count, Text


class KernelLine(Struct, frozen=True, gc=False, array_like=True):
    """One line, and when it was written."""

    at: float
    text: Text


class FullQuota(Struct, frozen=True, gc=False):
    """A quota that is used up, of the user or the group of processes of a node."""

    mount: Text
    uid: int
    """Whose processes it keeps from writing."""
    what: Literal["space", "inodes"] = "space"
    limit: Count = 0
    """Bytes or inodes."""
    late: bool = False
    """Whether that is the soft limit, which was exceeded for longer than is allowed."""
    gid: int | None = None
    """The group whose quota it is; None where it is that of the user."""
