"""Answers `check`: what can be done on this node, tried rather than guessed. It judges nothing."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from .gpu.gpus import Gpus
from .node import permission
from .proc import procfs
from .recorder import gdbcalls, recorder
from .recorder.recorderways import way
from .stacks import trial
from .table.table import Table
from .wire import cache

if TYPE_CHECKING:
    import threading

    from .recorder.recorderways import Way
    from .wire.requests import Message, Request
    from .wire.tools import Tools

MAX_RANKS = 256
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO of linux/proc_ns.h: the one that shows every process of the machine."""
_SECONDS = 5.0
_LOOK_S = 2.0


def handle(
    request: Request, tools: Tools, rights: permission.Rights, keeper: cache.Keeper
) -> Message:
    """Send one piece with all that was found."""
    cancel = request.cancelled
    gdb = version(tools, "gdb", ["-nx", "--version"], cancel)
    found: Message = {
        "at": round(time.time(), 3),
        "python": {"version": platform.python_version(), "path": sys.executable},
        "source": _source(),
        "cache": _cache(keeper),
        "rights": _rights(rights),
        "trial": trial.run(tools, cancel),
        "strace": version(tools, "strace", ["-V"], cancel),
        "gdb": gdb,
        "gdb_call": _gdb_call(gdb, tools, cancel),
        "nvml": Gpus(tools).once(cancel),
    }
    request.check()
    found.update(_processes(rights, tools))
    request.give(found)
    return {}


def _source() -> Dict[str, Any]:
    """Where the probe and py-spy come from: as the boot says, or installed here."""
    told = cache.booted()
    if not told:
        return {"probe": "installed", "sent": []}
    done = told.get("done") or {}
    return {"probe": done.get("probe"), "py_spy": done.get("py-spy"), "sent": told.get("sent")}


def _rights(rights: permission.Rights) -> Dict[str, Any]:
    status = procfs.parse_pairs(procfs.read("/proc/self/status") or b"")
    return {
        "uid": rights.uid,
        "user": permission.user_name(rights.uid),
        "capable": rights.capable,
        "seccomp": procfs.parse_int(status.get("Seccomp")),
    }


def version(tools: Tools, name: str, options: List[str], cancel: threading.Event) -> Dict[str, Any]:
    """Return path and version of a program that runs here, or why it does not."""
    path = shutil.which(name)
    if path is None:
        return {"ok": False, "why": "%s is not on PATH" % name}
    try:
        done = tools.run([path, *options], _SECONDS, cancel)
    except OSError as error:
        return {"ok": False, "path": path, "why": "%s does not start: %s" % (path, error.strerror)}
    words = procfs.text(done.out[:4096]).partition("\n")[0].split()
    if done.code != 0 or not words:
        why = "%s does not run: it %s" % (
            path,
            "gave no answer in %g s" % _SECONDS if done.timed_out else "ended with %s" % done.code,
        )
        return {"ok": False, "path": path, "why": why}
    return {"ok": True, "path": path, "version": words[-1][:40]}


def _gdb_call(gdb: Dict[str, Any], tools: Tools, cancel: threading.Event) -> Optional[Way]:
    """Return whether gdb may call into ranks here, tried on a process of our own."""
    if not gdb["ok"]:
        return None
    refused = gdbcalls.tried(gdb["path"], tools, cancel)
    return way("inject", "works") if refused is None else dict(refused.message, way="inject")


def _cache(keeper: cache.Keeper) -> Dict[str, Any]:
    """What is kept here, once old versions have gone; a slow file server is not waited for."""
    keeper.looked.wait(_LOOK_S)
    return dict(cache.facts(), swept=keeper.removed)


def _processes(rights: permission.Rights, tools: Tools) -> Message:
    """What is seen of processes, and every rank among them, of whatever user."""
    table = Table(rights)
    table.scope(True, None)
    table.scan()
    ranks = [fields for fields in table.processes().values() if fields["role"] == "rank"]
    ranks.sort(key=lambda fields: (fields["rank"] is None, fields["rank"] or 0, fields["pid"]))
    live = [fields for fields in ranks if fields["state"] != "Z"]
    own_space = procfs.link("/proc/self/ns/pid")
    return {
        "processes": {
            "seen": table.total,
            "others": _of_others(rights.uid),
            "hidepid": _hidepid(),
            "sees_init": os.path.exists("/proc/1/stat"),
            "contained": own_space is not None and own_space != _INITIAL_PID_NAMESPACE,
        },
        "ranks": [_rank(fields, rights, tools) for fields in live[:MAX_RANKS]],
        "more_ranks": max(0, len(live) - MAX_RANKS),
    }


def _of_others(uid: int) -> int:
    """Count the processes of other users; /proc/PID belongs to its process's user (proc(5))."""
    count = 0
    for pid in procfs.numbers(procfs.PROC):
        try:
            count += os.stat("%s/%d" % (procfs.PROC, pid)).st_uid != uid
        except OSError:
            continue
    return count


def _hidepid() -> Optional[str]:
    """Return the hidepid option of /proc (proc(5)), a number or a word; None without one."""
    found = None
    for mount in procfs.mounts("self"):
        if (mount.point, mount.fstype) == (procfs.PROC, "proc"):
            options = dict(option.partition("=")[::2] for option in mount.options.split(","))
            found = options.get("hidepid")
    return found and found[:20]


def _rank(fields: Dict[str, Any], rights: permission.Rights, tools: Tools) -> Message:
    pid = fields["pid"]
    attach = permission.may_attach(pid)
    why, fix = (None, None) if attach else permission.why_denied(pid, rights)
    told: Message = {
        "pid": pid,
        "rank": fields["rank"],
        "uid": fields.get("uid"),
        "user": fields.get("user"),
        "attach": attach,
        "why": why,
        "fix": fix,
        "core_size": (fields.get("limits") or {}).get("core_size"),
    }
    told["recorder"] = recorder.look(pid, fields["rank"], rights, tools) if attach else []
    return told
