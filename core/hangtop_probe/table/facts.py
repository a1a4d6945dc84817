"""Read the facts of a process that rarely change: what it is, not what it does.

Command line, environment, limits, working directory, outputs. Read through a guard,
because the memory lock of a wedged process can hang the reader.
"""

from __future__ import annotations

import functools
import itertools
import os
from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..files import pipelines
from ..node import permission
from ..proc import elf, procfs
from ..ranks import commands
from ..ranks.rankvariables import rank_number
from ..secrets import mask
from ..wire.guard import Guard, Hanging
from . import environment, liveenviron

_LIMITS = (
    ("open_files", "Max open files"),
    ("locked_memory", "Max locked memory"),
    ("core_size", "Max core file size"),
)
MAX_CMDLINE, MAX_VALUE = 64 << 10, 8 << 10
"""Bytes of a command line and characters of a variable that are kept of each process of the node:
any user may start many processes with 6 MiB of either."""
_MAX_LISTED = 2000
_TOGETHER = 64
"""Processes read in one guarded call, which takes some ms."""


class Facts(NamedTuple):
    """The slow facts of one process. None where they could not be read."""

    cmdline: Tuple[str, ...] = ()
    environ: Optional[Mapping[str, str]] = None
    """The variables that may leave the node, with all that number ranks."""
    exe: Optional[str] = None
    uid: int = -1
    denied: Optional[Tuple[str, Optional[str]]] = None
    """Why some of it could not be read, and one of `fixes`."""
    is_interpreter: bool = False
    """Whether its program has the symbols of a Python interpreter, under whatever name."""
    rank_at_start: Optional[Tuple[int, str]] = None
    """The rank number at its start, where it has set another one since."""

    @property
    def python(self) -> bool:
        """Whether it is a Python interpreter, by its program or its command."""
        if self.is_interpreter:
            return True
        if self.exe is not None:
            return commands.is_python_name(self.exe.replace(" (deleted)", ""))
        return bool(self.cmdline) and commands.is_python_name(self.cmdline[0])


def read_facts(pid: int, mine: permission.Rights) -> Facts:
    """Read what discovery needs of ``pid``; whatever cannot be read is None."""
    base = "/proc/%d" % pid
    cmdline = procfs.parse_cmdline(procfs.read(base + "/cmdline", MAX_CMDLINE) or b"")
    exe = procfs.link(base + "/exe")
    found = procfs.environ(pid)
    denied = None
    if found is None and os.path.exists(base):
        denied = permission.why_denied(pid, mine)
    facts = Facts(cmdline, _kept(found), exe, uid_of(pid), denied, _is_interpreter(pid))
    if found is None or not facts.python or rank_number(found):
        return facts
    return facts._replace(environ=_kept({**found, **_live(pid)}))


def _is_interpreter(pid: int) -> bool:
    try:
        return elf.symbols("/proc/%d/exe" % pid).is_python
    except OSError:
        return False


def _kept(environ: Optional[Mapping[str, str]]) -> Optional[Dict[str, str]]:
    if environ is None:
        return None
    return {k: v[:MAX_VALUE] for k, v in environ.items() if environment.is_allowed(k)}


def _live(pid: int) -> Mapping[str, str]:
    """Return the current environment of a program that was started without a rank number."""
    return liveenviron.read(pid, environment.is_allowed) or {}


def joined(known: Facts, pid: int, guard: Guard) -> Facts:
    """Return the facts of a process in a group, with the variables that it has now.

    It may have set RANK anew, also where it was started with one.
    """
    if not known.environ:
        return known
    try:
        live = guard.call(lambda: _live(pid))
    except Hanging:
        return known
    environ = {**known.environ, **(_kept(live) or {})}
    changed = rank_number(environ) != rank_number(known.environ)
    at_start = rank_number(known.environ) if changed else None
    return known._replace(environ=environ, rank_at_start=at_start)


def read_all(pids: Sequence[int], mine: permission.Rights, guard: Guard) -> Dict[int, Facts]:
    """Return the facts of processes, many in one guarded call: that costs as much as reading one.

    Those of a call that hangs are read one by one, to find out which it was.
    """
    found = {}
    for at in range(0, len(pids), _TOGETHER):
        some = pids[at : at + _TOGETHER]
        try:
            found.update(guard.call(functools.partial(_read, some, mine)))
        except Hanging:
            found.update((pid, read_guarded(pid, mine, guard, Facts())) for pid in some)
    return found


def _read(pids: Sequence[int], mine: permission.Rights) -> Dict[int, Facts]:
    return {pid: read_facts(pid, mine) for pid in pids}


def read_guarded(pid: int, mine: permission.Rights, guard: Guard, before: Facts) -> Facts:
    """Return the facts of a process, or those from ``before`` where reading them hangs."""
    try:
        return guard.call(lambda: read_facts(pid, mine))
    except Hanging:
        why = "reading its command line hangs; its memory lock is held"
        return before._replace(denied=(why, None))


def uid_of(pid: int) -> int:
    """Return who runs a process, -1 where that cannot be read."""
    uid = procfs.value_of(procfs.read("/proc/%d/status" % pid) or b"", b"Uid")
    return -1 if uid is None else uid


def describe(pid: int, facts: Facts) -> Dict[str, Any]:
    """Return the fields of model.Process that change rarely, for a process that is reported."""
    base = "/proc/%d" % pid
    return {
        "uid": facts.uid,
        "user": permission.user_name(facts.uid) if facts.uid >= 0 else "?",
        "cmdline": list(mask.mask_arguments(facts.cmdline)),
        "exe": facts.exe,
        "cwd": mask.mask_path(procfs.link(base + "/cwd") or "") or None,
        "env": environment.allowed(facts.environ or {}),
        "denied": facts.denied,
        "limits": _limits(pid),
        "fd_count": descriptor_count(base + "/fd"),
        "outputs": _outputs(pid),
        "net_ns": _foreign_net(pid),
    }


def _limits(pid: int) -> Dict[str, Optional[int]]:
    values = procfs.parse_limits(procfs.read("/proc/%d/limits" % pid) or b"")
    return {name: values.get(label) for name, label in _LIMITS}


def descriptor_count(path: str) -> Optional[int]:
    """Return how many entries a /proc/PID/fd has, or None where that costs too much to know.

    From Linux 6.2 on its size is the count (fs/proc/fd.c, proc_fd_getattr). Listing instead takes
    milliseconds for each thousand, and forked workers have all descriptors of their parent.
    """
    try:
        size = os.stat(path).st_size
        if size:
            return size
        with os.scandir(path) as entries:
            count = sum(1 for _ in itertools.islice(entries, _MAX_LISTED + 1))
    except OSError:
        return None
    return count if count <= _MAX_LISTED else None


MAX_PATHS = 4096
"""Outputs of processes that are remembered."""


def _foreign_net(pid: int) -> Optional[int]:
    """Return the network namespace of a process where it is not ours, by its inode."""
    inode = procfs.namespace(str(pid), "net")
    return None if inode == procfs.namespace("self", "net") else inode


def _outputs(pid: int) -> Tuple[str, ...]:
    """Return the targets of descriptors 1 and 2, and the files behind them where they are pipes."""
    links = [procfs.link("/proc/%d/fd/%d" % (pid, fd)) for fd in (1, 2)]
    told = [link for link in links if link is not None]
    pipes = dict.fromkeys(link for link in told if link.startswith("pipe:"))
    told += [one.path for pipe in pipes for one in pipelines.behind(pid, pipe)]
    return tuple(mask.mask_path(link) for link in told)


def remember(known: Dict[str, int], outputs: Tuple[str, ...], uid: int) -> None:
    """Record the outputs of a process of a user; the newest `MAX_PATHS` of all are kept."""
    for path in outputs:
        if path.startswith("/") and not path.startswith("/dev/"):
            known.pop(path, None)
            known[path] = uid
            if len(known) > MAX_PATHS:
                del known[next(iter(known))]
