"""A rank's flight recorder as a file, written when the rank ends: gloo writes none by itself.

`flight/ended_rank_N` of the run has the form of torch's own dumps (a pickle, without stacks: those
would import torch._inductor), and beside its keys `hangtop`: whether the rank finished or ended by
an exception, and whether that came out of a collective. Two things are corrected, which torch 2.13
gets wrong for gloo: the ranks of groups, and that an operation which failed counts as completed.

Written at the normal end, too: without a file it would be unknown whether a rank had finished or
was killed. Not written by a rank that a signal ends: a handler would change what the signal does. A
rank that fails writes the recordings of the other ranks on its node, before a launcher ends these:
see `siblings`.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import re
import select
import sys
import time
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Set

BINDING = "torch._C._distributed_c10d"
LONGEST_S = 1.0
"""Seconds by which the end of a rank may be delayed."""
MOST_ENTRIES = 10000
"""Limit of entries in a recorder: writing 2,000 takes 0.12 s of CPU."""
MOST_MEMBERS = 200000
"""Limit of ranks of all groups together that are written."""
_DUMPS = ("_dump_fr_trace", "_dump_nccl_trace")
_SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_FAILED = re.compile(r"gloo/|NCCL|timed out|closed by peer|reset by peer", re.IGNORECASE)
"""Matches the text of exceptions from a collective."""
_COPY = 'umask 077; cat >"$1" && mv -f "$1" "$2" || rm -f "$1"'
_COPY_NEW = 'umask 077; cat >"$1" && mv -n "$1" "$2"; rm -f "$1"'
"""Keeps a file that the rank itself has written in the meantime."""
_kept: Dict[int, "Keeper"] = {}
"""By process id: a fork copies this."""


class Keeper:
    """The data that is needed when this rank ends."""

    def __init__(self, module: Any, directory: str) -> None:
        self.module = module
        self.pid = os.getpid()
        self.rank = int(module.get_rank())
        self.directory = directory
        self.folder = os.path.join(directory, "flight")
        self.path = self.path_of(self.rank)
        self.began = time.time()
        self.groups: Dict[str, Dict[str, str]] = {}

    def path_of(self, rank: int) -> str:
        """Return the path of a rank's recording at its end."""
        return os.path.join(self.folder, "ended_rank_%d" % rank)

    def note_groups(self) -> None:
        """Record the process groups: destroying them makes torch forget their ranks."""
        self.groups.update(groups_of(self.module))

    def write(self) -> None:
        """Write the recorder; once, and only in the process that joined."""
        if _kept.pop(os.getpid(), None) is not self or self.pid != os.getpid():
            return
        error = last_exception()
        if _is_huge() or self._has_written() or not os.path.isdir(self.folder):
            return
        dump = read()
        if dump is None:
            return
        self.note_groups()
        complete(dump, self.groups, error)
        hand_over(pickle.dumps(dump, 2), self._temporary(self.path), self.path)
        if error is not None:
            self.write_others()

    def write_others(self) -> None:
        """Write the recordings of other ranks of this node, which a launcher may end next."""
        from . import siblings

        until = time.monotonic() + siblings.LONGEST_S
        for rank, data in siblings.recorders(self.directory, self.groups, until):
            path = self.path_of(rank)
            if not os.path.exists(path):
                hand_over(data, self._temporary(path), path, _COPY_NEW, until)

    def _temporary(self, path: str) -> str:
        return "%s.part-%d" % (path, self.pid)

    def _has_written(self) -> bool:
        """Return whether torch has written its own dump, which has stacks."""
        try:
            return os.stat("%s/rank_%d" % (self.folder, self.rank)).st_mtime >= self.began
        except OSError:
            return False


def keep(module: Any, directory: str) -> None:
    """Write the recorder of this rank at its end, however often it joins a process group."""
    if os.getpid() in _kept:
        return
    keeper = _kept[os.getpid()] = Keeper(module, directory)
    with contextlib.suppress(OSError):
        os.unlink(keeper.path)  # from an attempt that torchrun has restarted
    atexit.register(_at_end, keeper)
    util = sys.modules.get("multiprocessing.util")
    if util is not None and _is_child():
        # A process that multiprocessing has forked never runs what is registered above.
        util.Finalize(None, _at_end, args=(keeper,), exitpriority=1000)


def before_destroy() -> None:
    """Record the groups while torch knows them."""
    keeper = _kept.get(os.getpid())
    if keeper is not None:
        keeper.note_groups()


def _at_end(keeper: Keeper) -> None:
    from .failures import attempt

    attempt("recorder", keeper.write)


def _is_child() -> bool:
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def _is_huge() -> bool:
    sizes = [os.environ.get(name, "") for name in _SIZES]
    return any(size.isdigit() and int(size[:9]) > MOST_ENTRIES for size in sizes)


def last_exception() -> Optional[BaseException]:
    """Return the exception by which this process ends, as far as Python keeps it."""
    current = sys.exc_info()[1]
    return current or getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)


def read() -> Optional[Dict[str, Any]]:
    """Return what this process's recorder holds; None where there is none, or it is empty."""
    binding = sys.modules.get(BINDING)
    for name in _DUMPS:
        function = getattr(binding, name, None)
        if function is None:
            continue
        # Collectives, no stacks, not only those that are active.
        dump = pickle.loads(function(True, False, False))  # noqa: S301  # of this very process
        if isinstance(dump, dict) and dump.get("entries"):
            return dump
    return None


def complete(
    dump: Dict[str, Any], groups: Mapping[str, Mapping[str, str]], error: Optional[BaseException]
) -> None:
    """Add to a dump what torch does not write."""
    config = dump.get("pg_config")
    if groups and not (isinstance(config, dict) and any(config)):
        dump["pg_config"] = dict(groups)
    errors = [cause for cause in chain(error) if not isinstance(cause, SystemExit)]
    failed = next((cause for cause in errors if _FAILED.search(str(cause)[:2000])), None)
    if failed is not None:
        reopen(dump)
    dump["hangtop"] = {"ended": "finished", "why": ""}
    if errors:
        ended = "collective" if failed is not None else "exception"
        dump["hangtop"] = {"ended": ended, "why": _described(failed or errors[0])}


def _described(error: BaseException) -> str:
    return ("%s: %s" % (type(error).__name__, " ".join(str(error).split())))[:300]


def chain(error: Optional[BaseException]) -> Iterator[BaseException]:
    """Yield an exception and its chain of causes and contexts."""
    visited: Set[int] = set()
    while error is not None and id(error) not in visited and len(visited) < 20:
        visited.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def reopen(dump: Dict[str, Any]) -> None:
    """Reopen the newest operation of gloo: it failed, which the recorder calls completed."""
    entry = dump["entries"][-1]
    if not str(entry.get("profiling_name")).startswith("gloo:"):
        return
    entry["retired"] = False
    status = dump.get("pg_status", {}).get(str(entry.get("pg_id")))
    number = entry.get("collective_seq_id")
    if isinstance(status, dict) and isinstance(number, int):
        status["last_completed_collective"] = number - 1


def groups_of(module: Any) -> Dict[str, Dict[str, str]]:
    """Return the process groups of this rank, in the form of `pg_config`."""
    world = getattr(module, "_world", None)
    groups: Dict[str, Dict[str, str]] = {}
    left = MOST_MEMBERS
    for group, name in dict(getattr(world, "pg_names", {})).items():
        members = world.pg_group_ranks.get(group) if world is not None else None
        if not members or len(members) > left:
            continue
        left -= len(members)
        ordered: List[int] = sorted(members, key=members.__getitem__)
        desc = str(getattr(group, "group_desc", "") or "")
        groups[str(name)] = {"name": str(name), "desc": desc, "ranks": str(ordered)}
    return groups


def hand_over(
    data: bytes, temporary: str, path: str, how: str = "", until: Optional[float] = None
) -> None:
    """Let another process write a file and give it its name, and wait for that a moment.

    A file system that hangs then blocks that process, and not this one.
    """
    until = time.monotonic() + LONGEST_S if until is None else until
    source, sink = os.pipe()
    try:
        child = _start(["/bin/sh", "-c", how or _COPY, "sh", temporary, path], source)
    finally:
        os.close(source)
    try:
        is_whole = _pour(data, sink, until)
    finally:
        os.close(sink)
    _await(child, until if is_whole else 0.0)


def _start(command: Sequence[str], source: int) -> int:
    """Start a program that reads from ``source``, and holds nothing else of this process open."""
    actions: List[Any] = [(os.POSIX_SPAWN_DUP2, source, 0)]
    actions += [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)]
    # gloo's sockets stay open in processes that a rank starts: its peers would not see it end.
    numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    actions += [(os.POSIX_SPAWN_CLOSE, fd) for fd in numbers if fd > 2 and _is_open(fd)]
    path = os.environ.get("PATH", os.defpath)
    return os.posix_spawn(command[0], list(command), {"PATH": path}, file_actions=actions)


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _pour(data: bytes, sink: int, until: float) -> bool:
    """Write all of it, as fast as it is read; return False if it takes too long."""
    os.set_blocking(sink, False)
    left = memoryview(data)
    while left:
        if not select.select([], [sink], [], max(until - time.monotonic(), 0.0))[1]:
            return False
        left = left[os.write(sink, left[: 1 << 16]) :]
    return True


def _await(child: int, until: float) -> None:
    """Wait for a process, and end it if it takes too long."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(child, os.WNOHANG)[0] == 0:
            if time.monotonic() > until:
                os.kill(child, 9)
                return
            time.sleep(0.005)
