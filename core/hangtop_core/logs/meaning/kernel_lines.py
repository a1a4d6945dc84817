"""Lines of a node's kernel log, and what the known ones say: rows K1 to K5 of
`logs.meaning.known`."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from hangtop_core.logs.meaning.known import recognise
from hangtop_core.text.clean import duration

if TYPE_CHECKING:
    from collections.abc import Collection

    from hangtop_core.model.node.facts import KernelLine
    from hangtop_core.model.snapshot import Node

Kind = Literal["oom", "fault", "xid", "hung-task"]

_KINDS: dict[str, Kind] = {"K1": "xid", "K2": "oom", "K3": "hung-task", "K5": "fault"}


class Known(Struct, frozen=True, gc=False):
    """What a known line says."""

    kind: Kind
    pid: int | None
    """As the kernel counts, outside of all containers."""
    comm: str
    device: str = ""
    """PCI address of a GPU."""
    number: int | None = None
    """Of an Xid."""


RECENT_S = 3600.0
"""What the kernel said so long ago may be why there is no job any more."""
_HOW = {"oom": "killed for want of memory", "fault": "crashed"}
SHOWN = 3
"""Processes that are told of one node."""
INIT_PID_NS = 0xEFFFFFFC
"""Inode of the machine's own PID namespace: PROC_PID_INIT_INO of the kernel."""
_USER = re.compile(r"\b(?:UID:|uid=)(\d{1,10})\b")
_PYTHON = re.compile(r"python|pt_|torch")
"""Names of processes: a main thread of Python, and those that torch gives."""


def deaths(node: Node, now: float, pids: Collection[int] = ()) -> tuple[str, ...]:
    """Python processes of this user that the kernel of a node has ended lately, the newest first.

    Whose a process was the kernel tells only when it killed it for want of memory. Others are
    told only of ``pids``, which the user has named: they may be of anybody. In a container the
    kernel's numbers of processes and users mean others.
    """
    if node.pid_ns not in (None, INIT_PID_NS):
        return ()
    found = []
    for line in reversed(node.kernel_lines):
        told = read(line)
        how = _HOW.get(told.kind) if told is not None else None
        if told is None or how is None or not 0 <= now - line.at <= RECENT_S:
            continue
        user = _USER.search(line.text)
        own = told.pid in pids or (user is not None and int(user[1]) == node.uid)
        if own and _PYTHON.match(told.comm):
            found.append(
                f"pid {told.pid} ({told.comm}) {how} {duration(max(now - line.at, 0.0))} ago"
            )
    return tuple(dict.fromkeys(found))[:SHOWN]  # the kernel says it twice


def read(line: KernelLine) -> Known | None:
    """What a line says, if it is one about a process or a GPU that we know."""
    return _known(line.text)


@lru_cache(4096)
def _known(text: str) -> Known | None:
    found = recognise(text)
    kind = _KINDS.get(found[0].code) if found is not None else None
    if found is None or kind is None:
        return None
    told = found[1]
    pid, number = told.get("pid"), told.get("xid")
    return Known(
        kind,
        int(pid) if pid else None,
        told.get("comm", ""),
        told.get("gpu", ""),
        int(number) if number else None,
    )


def on_this_clock(node: Node, skew: float, fields: dict[str, Any], at: float) -> None:
    """Put what a kernel said on the head's clock, and note when it killed for memory.

    ``fields`` is what changed of ``node``, whose clock is ``skew`` seconds ahead.
    """
    if "kernel_lines" in fields and skew:
        fields["kernel_lines"] = tuple(
            replace(line, at=line.at - skew) for line in fields["kernel_lines"]
        )
    old, new = node.oom_kills, fields.get("oom_kills")
    if old is not None and new is not None and new > old:
        fields["oom_killed_at"] = at
