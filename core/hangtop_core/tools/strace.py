"""Parser of strace's output: calls of each thread folded by their targets.

Most threads of a rank only wait: those are folded into one line for each way of waiting, and the
waits of a thread between its other calls are one row.

Source of the forms: strace 6.1, `-f -tt -T -yy`. strace itself prints each descriptor's target at
the time of the call (`5</data/x>`, `6<TCP:[10.0.0.1:5->10.0.0.2:6]>`), so that no lookup is needed
afterwards, when it may be another file. Pure.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from hangtop_core.text.clean import clean, plural
from hangtop_core.text.rank_sets import fold

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Filter = Literal["all", "network", "file", "waits"]

_LINE = re.compile(r"(?:\[pid +(\d+)\] )?(\d\d:\d\d:\d\d\.\d+) (.*)", re.DOTALL)
_RESUMED = re.compile(r"<\.\.\. (\w+) resumed>(.*)", re.DOTALL)
_CALL = re.compile(r"(?<!\w)(\w+)\((.*)", re.DOTALL)
_RESULT = re.compile(r"\)? += (-?\d+|0x[0-9a-f]+|\?)(<.*?>+)?(?: (E\w+))?.*?(?: <(\d+\.\d+)>)?$")
_FD = re.compile(
    r"(?:AT_FDCWD<[^>]*>, )?(?<!\d)(\d+)<((?:[A-Za-z][\w-]*:)?\[.*?\](?=>)|[^>]*(?:->[^>]*)*)>"
)
_OPENED = re.compile(r'[^"]*"((?:[^"\\]|\\.)*)"')
_SOCKET = re.compile(r"(TCP|UDP|RAW|UNIX|NETLINK|SCTP|PING|socket|DCCP|PACKET|VSOCK)\w*[-:\[]")
_NETWORK = frozenset((
    "socket", "socketpair", "connect", "accept", "accept4", "bind", "listen", "shutdown",
    "sendto", "recvfrom", "sendmsg", "recvmsg", "sendmmsg", "recvmmsg", "setsockopt",
    "getsockopt", "getsockname", "getpeername",
))  # fmt: skip
_POLLS = frozenset((
    "poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "epoll_pwait2",
))  # fmt: skip
_BY_NAME = frozenset((
    "open", "openat", "openat2", "creat", "stat", "lstat", "newfstatat", "statx", "access",
    "faccessat", "faccessat2", "readlink", "readlinkat", "unlink", "unlinkat", "rename",
    "renameat", "renameat2", "mkdir", "mkdirat", "rmdir", "chdir", "execve", "truncate", "statfs",
    "link", "linkat", "symlink", "symlinkat", "utimensat", "getxattr", "flock", "fcntl", "fsync",
    "fdatasync", "ftruncate", "fallocate", "getdents64", "mount", "umount2",
))  # fmt: skip
NOISE = frozenset({"futex", "restart_syscall", "sched_yield", "membarrier", "rt_sigreturn"})
"""Calls by which threads wait for each other: folded into one, whatever their addresses."""
_WAITS = NOISE | _POLLS | {"clock_nanosleep", "nanosleep"}
_ENDS = re.compile(r"<(?:[A-Za-z][\w-]*:)?\[([^<>]+->[^<>]+)\]>|<(pipe:\[\d+\])>")
_AGAIN = re.compile(r"<\.\.\. resuming interrupted (\w+) \.\.\.>")
MAX_ROWS = 5000


class Row(Struct):
    """Calls of one kind by one thread on one target, with one result."""

    tid: int
    call: str
    on: str
    """Descriptor and its target, as `5</data/x>`; a path; empty if it has neither."""
    error: str = ""
    """`ETIMEDOUT`; empty for success."""
    count: int = 0
    seconds: float = 0.0
    """Total time in the call."""
    longest: float = 0.0
    inside: bool = False
    """Whether the thread was in the call when the trace ended."""
    last: str = ""
    """The newest line, without thread and time."""

    def fits(self, wanted: Filter) -> bool:
        """Whether it passes the filter."""
        if wanted == "all":
            return True
        if wanted == "waits":
            return self.call in _WAITS
        target = self.on.partition("<")[2]
        if wanted == "network":
            return self.call in _NETWORK or bool(_SOCKET.match(target))
        return self.call in _BY_NAME or target.startswith(("/", "pipe:"))


class Calls:
    """Fold lines as they arrive."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._rows: dict[tuple[int, str, str, str], Row] = {}
        self._open: dict[int, str] = {}
        """The unfinished call of each thread, up to where strace broke the line off."""
        self._begun: dict[tuple[int, str], str] = {}
        """The beginning of each thread's last call by name."""
        self.left_out = 0
        """Number of lines of kinds beyond the limit."""

    def add(self, line: str) -> None:
        """Take one line; lines other than calls are ignored."""
        tid, text = thread_of(line, self.pid)
        if text is None:
            return
        resumed = _RESUMED.match(text)
        if resumed is not None:
            name = resumed[1]
            # The probe omits the beginnings of repeated polls.
            begun = self._open.pop(tid, None) or self._begun.get((tid, name), f"{name}(")
            self._whole(tid, begun + resumed[2])
        elif text.endswith(("<unfinished ...>", "<detached ...>")):
            self._open[tid] = begun = re.sub(r" ?<\w+ \.\.\.>$", "", text)
            self._begun[tid, begun.partition("(")[0]] = begun
        elif _CALL.match(text) is None:
            self._open.pop(tid, None)  # a signal, or the end of the thread
        elif _RESULT.search(text) is None:
            self._open[tid] = text  # the call that strace is printing
        else:
            self._open.pop(tid, None)
            self._whole(tid, text)

    def fits(self, line: str, wanted: Filter) -> bool:
        """Whether a line, the last that was added, passes the filter."""
        tid, text = thread_of(line, self.pid)
        resumed = _RESUMED.match(text or "")
        if resumed is not None:
            text = self._begun.get((tid, resumed[1]), f"{resumed[1]}(")
        call = _CALL.match(text or "")
        if wanted == "all" or call is None:
            return wanted == "all"
        return Row(tid, _name(call), on(call[1], call[2])).fits(wanted)

    def _whole(self, tid: int, text: str) -> None:
        call, result = _CALL.match(text), _RESULT.search(text)
        if call is None or result is None:
            return
        error = result[3] or ""
        row = self._row(tid, _name(call), on(call[1], call[2]), error)
        if row is None:
            self.left_out += 1
            return
        took = float(result[4] or 0.0)
        row.count += 1
        row.seconds += took
        row.longest = max(row.longest, took)
        row.last = clean(text, 300)

    def _row(self, tid: int, call: str, target: str, error: str) -> Row | None:
        key = (tid, call, target, error)
        if key not in self._rows:
            if len(self._rows) >= MAX_ROWS:
                return None
            self._rows[key] = Row(tid, call, target, error)
        return self._rows[key]

    def rows(self, wanted: Filter = "all") -> list[Row]:
        """Return the rows thread by thread, the main thread first, unfinished calls ahead."""
        inside = [
            Row(tid, _name(call), on(call[1], call[2]), inside=True, last=clean(text, 300))
            for tid, text in self._open.items()
            if (call := _CALL.match(text)) is not None
        ]
        rows = [*inside, *self._rows.values()]
        rows.sort(key=lambda row: (row.tid != self.pid, row.tid, not row.inside, -row.seconds))
        return [row for row in rows if row.fits(wanted)]


def thread_of(line: str, pid: int) -> tuple[int, str | None]:
    """Return the thread of a line, and the line without thread and time; None without a time."""
    match = _LINE.match(line)
    if match is None:
        return pid, None
    return int(match[1] or pid), match[3]


def _name(call: re.Match[str]) -> str:
    """Return a call's name; for one that the kernel restarted its original name."""
    again = _AGAIN.match(call[2]) if call[1] == "restart_syscall" else None
    return again[1] if again is not None else call[1]


def on(call: str, arguments: str) -> str:
    """Return the target of a call: its descriptor as strace names it, or the path it opens."""
    if call in NOISE:
        return ""
    if call in _POLLS:
        targets = [f"{fd}<{target}>" for fd, target in _FD.findall(arguments)][:3]
        return clean(" ".join(targets), 200)
    if call in _BY_NAME:
        path = _OPENED.match(arguments)
        if path is not None and path[1]:
            return clean(f"<{path[1]}>" if path[1].startswith("/") else path[1], 200)
    first = _FD.match(arguments)
    return clean(f"{first[1]}<{first[2]}>", 200) if first is not None else ""


class Waiting(Struct, frozen=True):
    """Threads that only waited, all in the same way."""

    tids: tuple[int, ...]
    calls: tuple[str, ...]
    """The calls that they wait in: `futex`; `epoll_wait` and `futex`."""
    on: str = ""
    """Their common target: a socket, a pipe, a file; empty for several."""

    def text(self, names: Mapping[str, str]) -> str:
        """Return `12 threads wait in futex: 3117-3128`."""
        verb = "waits" if len(self.tids) == 1 else "wait"
        how = " and ".join(self.calls)
        what = f" on {explained(self.on, names)}" if self.on else ""
        return f"{plural(len(self.tids), 'thread')} {verb} in {how}{what}: {fold(self.tids)}"


def folded(rows: Sequence[Row], pid: int) -> tuple[list[Row], list[Waiting]]:
    """Return rows with each thread's waits in one row, and idle threads.

    The main thread is never idle: its wait is usually the question.
    """
    by_thread: dict[int, list[Row]] = {}
    for row in rows:
        by_thread.setdefault(row.tid, []).append(row)
    kept: list[Row] = []
    idle: dict[tuple[tuple[str, ...], str], list[int]] = {}
    for tid, own in by_thread.items():
        if tid != pid and all(row.call in _WAITS for row in own):
            calls = tuple(sorted({"futex" if row.call in NOISE else row.call for row in own}))
            targets = {row.on for row in own if row.on and "<anon_inode:" not in row.on}
            idle.setdefault((calls, targets.pop() if len(targets) == 1 else ""), []).append(tid)
        else:
            kept += _without_noise(own)
    waiting = [Waiting(tuple(tids), *how) for how, tids in idle.items()]
    return kept, sorted(waiting, key=lambda group: (-len(group.tids), group.calls))


def _without_noise(own: Sequence[Row]) -> list[Row]:
    """Return one thread's rows, with one row for all its waits for other threads."""
    noise = [row for row in own if row.call in NOISE and not row.inside]
    if len(noise) < 2:
        return list(own)
    longest = max(noise, key=lambda row: row.seconds)
    merged = Row(
        longest.tid,
        "futex",
        "",
        count=sum(row.count for row in noise),
        seconds=sum(row.seconds for row in noise),
        longest=max(row.longest for row in noise),
        last=longest.last,
    )
    remaining = [row for row in own if row.inside or row.call not in NOISE]
    return sorted([*remaining, merged], key=lambda row: (not row.inside, -row.seconds))


def explained(target: str, names: Mapping[str, str]) -> str:
    """Return a target with the owner of its other end if ``names`` has it: see `ends`."""
    inner = target.partition("<")[2].removesuffix(">")
    # No regular expression: on hostile input it would cost cubic time.
    addresses = inner.partition("[")[2].removesuffix("]") if inner.endswith("]") else ""
    name = names.get(addresses if "->" in addresses else inner.partition(" ")[0])
    return f"{target} = {name}" if name else target


def in_place(line: str, names: Mapping[str, str]) -> str:
    """Return a line of strace with the owners of the other ends behind its sockets and pipes."""
    if not names:
        return line

    def named(match: re.Match[str]) -> str:
        name = names.get(match[1] or match[2])
        return f"{match[0]}={{{name}}}" if name else match[0]

    return _ENDS.sub(named, line)


def table(
    calls: Calls, wanted: Filter, names: Mapping[str, str], threads: Mapping[int, str]
) -> list[str]:
    """Return calls as lines: per thread count, duration and target.

    Args:
        calls: the folded calls.
        wanted: the filter; for all, waits are folded, too.
        names: owners of the other ends of sockets.
        threads: names of threads.
    """
    rows, waiting = shown(calls, wanted)
    lines: list[str] = []
    last = None
    for row in rows:
        if row.tid != last:
            last = row.tid
            lines.append(thread_title(row.tid, calls.pid, threads))
        times = "in it now" if row.inside else f"{row.count:>6} x {row.seconds:8.3f} s"
        what = f"{row.call} {row.error}".strip()
        lines.append(f"  {times:>19}  {what:<24} {explained(row.on, names)}".rstrip())
    return [*lines, *(idle.text(names) for idle in waiting)]


def shown(calls: Calls, wanted: Filter) -> tuple[list[Row], list[Waiting]]:
    """Return the rows that a filter shows, and the idle threads that it folds."""
    rows = calls.rows(wanted)
    return folded(rows, calls.pid) if wanted == "all" else (rows, [])


def thread_title(tid: int, pid: int, threads: Mapping[int, str]) -> str:
    """Return `thread 16920 pt_autograd_0`, without a name that is only the main thread's."""
    name = threads.get(tid, "")
    if tid == pid:
        return f"thread {tid} (main)"
    return f"thread {tid} {clean(name, 30)}" if name != threads.get(pid, "") else f"thread {tid}"
