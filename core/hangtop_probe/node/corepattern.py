"""Where the kernel of this node puts the cores of processes that crash (core(5))."""

from __future__ import annotations

from typing import Any, Dict

from ..proc import procfs

PATTERN = "/proc/sys/kernel/core_pattern"
USES_PID = "/proc/sys/kernel/core_uses_pid"


def fact() -> Dict[str, Any]:
    """Return where the kernel puts cores of crashes, as a capability of the node."""
    pattern = procfs.read(PATTERN)
    if pattern is None:
        return {"ok": False, "why": "%s cannot be read" % PATTERN}
    uses_pid = (procfs.read(USES_PID) or b"").strip() == b"1"
    text = procfs.text(pattern).rstrip("\n")[:1000]
    return {"ok": True, "path": text, "version": "pid" if uses_pid else None}
