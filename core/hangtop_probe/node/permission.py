"""Why a process cannot be read on this node, and which of the `fixes` changes it.

Reading environ, descriptors or the memory of a process is a ptrace access check (ptrace(2)):
same user and a dumpable process, or CAP_SYS_PTRACE, and then what Yama allows.
"""

from __future__ import annotations

import os
import pwd
import time
from typing import Dict, NamedTuple, Optional, Tuple

from ..proc import procfs
from ..wire import fixes
from ..wire.guard import Guard, Hanging

CAP_SYS_PTRACE = 19


class Rights(NamedTuple):
    """What this process may do to others."""

    uid: int
    capable: bool
    """Whether it has CAP_SYS_PTRACE."""
    yama: Optional[int]
    """kernel.yama.ptrace_scope, None where Yama is not in the kernel."""


def rights() -> Rights:
    """Return what the probe may do, from /proc/self/status and Yama's sysctl."""
    status = procfs.parse_pairs(procfs.read("/proc/self/status") or b"")
    try:
        effective = int(status.get("CapEff", "0"), 16)
    except ValueError:
        effective = 0
    scope = procfs.read("/proc/sys/kernel/yama/ptrace_scope")
    yama = procfs.number(scope.strip()) if scope else None
    return Rights(os.geteuid(), bool(effective >> CAP_SYS_PTRACE & 1), yama)


def ptrace_fact(mine: Rights) -> Dict[str, object]:
    """Return the `ptrace` capability of the node: whether own processes can be looked into."""
    if mine.yama == 3:
        return {
            "ok": False,
            "why": "kernel.yama.ptrace_scope is 3: nobody may attach until this node restarts",
            "fix": fixes.YAMA_RESTART,
        }
    if mine.capable:
        return {"ok": True}
    if mine.yama in (1, 2):
        why = "kernel.yama.ptrace_scope is %d and this is %s without CAP_SYS_PTRACE"
        who = "root" if mine.uid == 0 else user_name(mine.uid)
        fix = fixes.CONTAINER if mine.uid == 0 else fixes.YAMA
        return {"ok": False, "why": why % (mine.yama, who), "fix": fix}
    if mine.uid == 0:
        why = "root without CAP_SYS_PTRACE: only processes with no more capabilities can be read"
        return {"ok": True, "why": why, "fix": fixes.CONTAINER}
    return {"ok": True}


def may_attach(pid: int) -> bool:
    """Whether the kernel would let this process attach to ``pid``: opening its memory asks.

    Nothing is read; the check is the one ptrace and process_vm_readv make.
    """
    try:
        os.close(os.open("/proc/%d/mem" % pid, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def why_denied(pid: int, mine: Rights) -> Tuple[str, str]:
    """Return why ``pid`` cannot be looked into, and the fix."""
    status = procfs.parse_pairs(procfs.read("/proc/%d/status" % pid) or b"")
    tracer = procfs.decimal((status.get("TracerPid") or "").strip())
    if tracer:
        stat = procfs.read_stat(tracer)
        name = " (%s)" % stat.comm if stat is not None else ""
        return "it is traced by process %d%s already" % (tracer, name), fixes.TRACED
    uids = (status.get("Uid") or "").split()
    owner = int(uids[0]) if uids and uids[0].isdigit() else None
    if mine.yama == 3:
        return _by_yama(mine)
    if owner is not None and owner != mine.uid and not mine.capable:
        why = "it belongs to %s and hangtop runs as %s" % (user_name(owner), user_name(mine.uid))
        if mine.uid == 0:
            return why + " without CAP_SYS_PTRACE", fixes.CONTAINER
        return why, _as_user(owner)
    return _why_own_denied(pid, owner, mine)


def _why_own_denied(pid: int, owner: Optional[int], mine: Rights) -> Tuple[str, str]:
    """Return why a process cannot be looked into that the user alone does not forbid."""
    refused = "the kernel refuses it (security module or user namespace)"
    if mine.capable:
        return refused, fixes.OUTSIDE if mine.uid == 0 else fixes.SUDO
    if _not_dumpable(pid, owner):
        return "it made itself non-dumpable (prctl PR_SET_DUMPABLE)", fixes.SUDO
    if mine.yama in (1, 2):
        return _by_yama(mine)
    if mine.uid == 0:
        return "it has capabilities that this root lacks (no CAP_SYS_PTRACE)", fixes.CONTAINER
    return refused, fixes.SUDO


def _by_yama(mine: Rights) -> Tuple[str, str]:
    fact = ptrace_fact(mine)
    return str(fact["why"]), str(fact["fix"])


def _as_user(owner: int) -> str:
    """Return how to see what belongs to another user."""
    if owner == 0:
        return fixes.SUDO
    return fixes.as_user(user_name(owner))


def _not_dumpable(pid: int, owner: Optional[int]) -> bool:
    """The kernel gives /proc/PID of a non-dumpable process to root (proc(5))."""
    try:
        return owner not in (None, 0) and os.stat("/proc/%d/environ" % pid).st_uid == 0
    except OSError:
        return False


_NAMES: Dict[int, Tuple[str, float]] = {}
"""By user id: the name, and until when it counts, in monotonic seconds."""
_GUARD = Guard()
_AGAIN_S = 60.0
"""Seconds after which a directory service that gave no name is asked again."""


def user_name(uid: int) -> str:
    """Return the name of a user, or `uid N` where the directory service does not answer."""
    name, until = _NAMES.get(uid, ("", 0.0))
    if not name or time.monotonic() > until:
        until = float("inf")
        try:
            name = _GUARD.call(lambda: pwd.getpwuid(uid).pw_name)
        except (KeyError, OSError, Hanging):
            name, until = "uid %d" % uid, time.monotonic() + _AGAIN_S
        _NAMES[uid] = name, until
    return name
