"""The `holders` request: other processes of the node with the same file, pipe or socket open.

It compares the targets of /proc/PID/fd of all readable processes, as lsof does; nothing is opened
and no path is looked up, so a dead file server cannot block it.
"""

from __future__ import annotations

import os
from typing import Dict, List, Optional

from ..net.sockets import inode_of
from ..node import permission
from ..proc import procfs
from ..secrets import mask
from ..wire.requests import Message, Refused, Request
from . import descriptors, nodewide
from .owners import Owner

MAX_HOLDERS = 256


def handle(request: Request, rights: permission.Rights) -> Message:
    """Answer `holders`: the target, and who has it, in the summary."""
    pid, fd = request.message.get("pid"), request.message.get("fd")
    if not isinstance(pid, int) or not isinstance(fd, int) or pid <= 0 or fd < 0:
        raise Refused("error", "holders needs a `pid` and an `fd`")
    target = procfs.link("/proc/%d/fd/%d" % (pid, fd))
    if target is None:
        raise _why_not(pid, fd, rights)
    around = nodewide.Node()
    found = _rows(around, target, "has it open", Owner(pid, fd))
    if target.startswith("socket:["):
        found += _other_end(around, pid, target)
    elif target.startswith("/"):
        inode = _inode(pid, fd)
        found = [row for row in found if inode in (None, _inode(row["pid"], row["fd"]))]
    return {
        "target": mask.mask_path(target),
        "holders": found[:MAX_HOLDERS],
        "more": max(len(found) - MAX_HOLDERS, 0),
        "hidden": _hidden(),
    }


def _why_not(pid: int, fd: int, rights: permission.Rights) -> Refused:
    if procfs.read_stat(pid) is None:
        return Refused("gone", "the process is gone")
    if not os.access("/proc/%d/fd" % pid, os.R_OK | os.X_OK):
        return Refused("denied", *permission.why_denied(pid, rights))
    return Refused("missing", "the process has no descriptor %d now" % fd)


def _inode(pid: int, fd: int) -> Optional[int]:
    """Return the inode by fdinfo (Linux 5.14); a path may be another file in another process."""
    return descriptors.info_of(pid, fd).inode


def _other_end(around: nodewide.Node, pid: int, target: str) -> List[Message]:
    sockets = around.sockets(pid)
    entry = sockets.by_inode.get(inode_of(target) or -1)
    peer = sockets.peer(entry) if entry is not None else None
    return [] if peer is None else _rows(around, "socket:[%d]" % peer, "has the other end")


def _rows(
    around: nodewide.Node, target: str, how: str, besides: Optional[Owner] = None
) -> List[Message]:
    """Return descriptors that lead to a target, in the order of processes."""
    found: List[Message] = []
    comms: Dict[int, Optional[procfs.Stat]] = {}
    for pid, fd in around.owners(target, besides):
        if (pid, fd) == besides:
            continue
        if pid not in comms:
            comms[pid] = procfs.read_stat(pid)
        stat = comms[pid]
        if stat is None:
            continue
        row = {"pid": pid, "fd": fd, "comm": stat.comm, "state": stat.state}
        found.append(dict(row, mode=descriptors.info_of(pid, fd).mode, how=how))
    return found


def _hidden() -> int:
    """Return the number of processes whose descriptors are not readable."""
    return sum(
        not os.access("/proc/%d/fd" % pid, os.R_OK | os.X_OK) for pid in procfs.numbers(procfs.PROC)
    )
