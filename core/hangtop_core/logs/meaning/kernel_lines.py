"""Known lines of a node's kernel log: rows K1 to K5 of `logs.meaning.known`."""

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
    """The content of a known line."""

    kind: Kind
    pid: int | None
    """The pid in the kernel's own numbering, outside of all containers."""
    comm: str
    device: str = ""
    """PCI address of a GPU."""
    number: int | None = None
    """The number of an Xid."""


RECENT_S = 3600.0
"""Seconds during which a kernel line may explain why there is no job any more."""
_HOW = {"oom": "killed for want of memory", "fault": "crashed"}
SHOWN = 3
"""Maximum number of processes that are reported per node."""
INIT_PID_NS = 0xEFFFFFFC
"""Inode of the machine's own PID namespace: PROC_PID_INIT_INO of the kernel."""
_USER = re.compile(r"\b(?:UID:|uid=)(\d{1,10})\b")
_PYTHON = re.compile(r"python|pt_|torch")
"""Names of processes: a main thread of Python, and names that torch gives."""


def deaths(node: Node, now: float, pids: Collection[int] = ()) -> tuple[str, ...]:
    """Return the user's Python processes that the kernel of a node ended lately, newest first.

    The kernel names the user only of a process that it killed for want of memory. Other processes
    are reported only for ``pids``, which the user has named: they may be anyone's. In a container
    the kernel's pids and users are different ones.
    """
    if node.pid_ns not in (None, INIT_PID_NS):
        return ()
    texts = []
    for line in reversed(node.kernel_lines):
        event = read(line)
        how = _HOW.get(event.kind) if event is not None else None
        if event is None or how is None or not 0 <= now - line.at <= RECENT_S:
            continue
        user = _USER.search(line.text)
        own = event.pid in pids or (user is not None and int(user[1]) == node.uid)
        if own and _PYTHON.match(event.comm):
            texts.append(
                f"pid {event.pid} ({event.comm}) {how} {duration(max(now - line.at, 0.0))} ago"
            )
    return tuple(dict.fromkeys(texts))[:SHOWN]  # the kernel says it twice


def read(line: KernelLine) -> Known | None:
    """Return the content of a line about a known event of a process or a GPU; else None."""
    return _parsed(line.text)


@lru_cache(4096)
def _parsed(text: str) -> Known | None:
    match = recognise(text)
    kind = _KINDS.get(match[0].code) if match is not None else None
    if match is None or kind is None:
        return None
    fields = match[1]
    pid, number = fields.get("pid"), fields.get("xid")
    return Known(
        kind,
        int(pid) if pid else None,
        fields.get("comm", ""),
        fields.get("gpu", ""),
        int(number) if number else None,
    )


def on_this_clock(node: Node, skew: float, fields: dict[str, Any], at: float) -> None:
    """Move a kernel's lines to the head's clock, and note kills for want of memory.

    ``fields`` are the changes of ``node``, whose clock is ``skew`` seconds ahead.
    """
    if "kernel_lines" in fields and skew:
        fields["kernel_lines"] = tuple(
            replace(line, at=line.at - skew) for line in fields["kernel_lines"]
        )
    old, new = node.oom_kills, fields.get("oom_kills")
    if old is not None and new is not None and new > old:
        fields["oom_killed_at"] = at
