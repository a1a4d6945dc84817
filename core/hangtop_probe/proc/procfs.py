"""Parsers and readers for /proc/PID: bytes in, typed values out.

The parsers accept any content and never raise: a missing or malformed field is None, zero or
empty. The readers return None where a file cannot be read, because a process may exit, or belong to
another user, at any moment. Formats: proc(5),
Documentation/filesystems/proc.rst and kernel/sched/debug.c of Linux.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Dict, Iterable, List, NamedTuple, Optional, Tuple

from .processname import masked

PROC = "/proc"
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")
MAX_PATH = 4000
MAX_ENVIRON = 8 << 20
"""Bytes: Linux takes 6 MiB of arguments and environment at most (fs/exec.c)."""
PF_KTHREAD = 0x00200000
"""Flag of kernel threads in field 9 of /proc/PID/stat (include/linux/sched.h)."""


class Stat(NamedTuple):
    """The used fields of /proc/PID/stat, also for threads. Times in clock ticks."""

    pid: int
    comm: str
    state: str
    ppid: int
    flags: int
    cpu_ticks: int
    threads: int
    start: int
    rss: int
    """Bytes."""
    exit_status: int
    """Wait status, for a zombie; zero where not permitted."""
    cpu: Optional[int] = None
    """CPU it last ran on; for a process, its main thread."""
    image: int = 0
    """Where its arguments begin: another random place with every exec; 0 where not permitted."""

    @property
    def kernel(self) -> bool:
        """Whether it is a kernel thread."""
        return bool(self.flags & PF_KTHREAD)


class Syscall(NamedTuple):
    """/proc/PID/task/TID/syscall: the call a thread is in."""

    number: int
    args: Tuple[int, ...]


def text(data: bytes) -> str:
    """Decode text chosen by a process: bytes that are no UTF-8 become escapes."""
    return data.decode("utf-8", "backslashreplace")


def words(block: str) -> Tuple[str, ...]:
    """Split a table written as a block of words."""
    return tuple(block.split())


def number(data: bytes) -> Optional[int]:
    """Return the decimal integer ``data`` holds, or None."""
    try:
        return int(data)
    except ValueError:
        return None


def parse_stat(data: bytes) -> Optional[Stat]:
    """Parse /proc/PID/stat. The name may itself hold blanks and brackets."""
    left, right = data.find(b"("), data.rfind(b")")
    fields = data[right + 1 :].split()
    if left < 1 or right < left or len(fields) < 22:
        return None
    try:
        pid = int(data[:left])
        ppid, flags = int(fields[1]), int(fields[6])
        cpu_ticks = int(fields[11]) + int(fields[12])
        threads, start, rss = int(fields[17]), int(fields[19]), int(fields[21])
        exit_status = int(fields[49]) if len(fields) > 49 else 0
        cpu = int(fields[36]) if len(fields) > 36 else None
        image = int(fields[45]) if len(fields) > 45 else 0
    except ValueError:
        return None
    name, state = masked(text(data[left + 1 : right])), text(fields[0][:1])
    return Stat(
        pid,
        name,
        state,
        ppid,
        flags,
        cpu_ticks,
        threads,
        start,
        rss * PAGE_SIZE,
        exit_status,
        cpu,
        image,
    )


def decimal(value: str) -> Optional[int]:
    """Return the number in a variable of a process, such as RANK, or None.

    Only plain digits, at most nine, are accepted: a variable may hold anything, and converting
    thousands of digits is slow or refused (ValueError, Python 3.11).
    """
    plain = 0 < len(value) < 10 and value.isascii() and value.isdigit()
    return int(value) if plain else None


def parse_pairs(data: bytes) -> Dict[str, str]:
    """Parse `key: value` lines: /proc/PID/status, io, sched, meminfo, fdinfo."""
    pairs = {}
    for line in data.split(b"\n"):
        key, colon, value = line.partition(b":")
        if colon:
            pairs[text(key.strip())] = text(value.strip())
    return pairs


def value_of(data: bytes, key: bytes) -> Optional[int]:
    """Return the integer after the colon of the first line that begins with ``key``.

    For a single value of a file that is read often, such as TracerPid of status.
    """
    at = 0 if data.startswith(key) else data.find(b"\n" + key) + 1 or -1
    if at < 0:
        return None
    end = data.find(b"\n", at)
    line = data[at:end] if end >= 0 else data[at:]
    fields = line.partition(b":")[2].split()
    return number(fields[0]) if fields else None


def parse_int(value: Optional[str]) -> Optional[int]:
    """Return the leading decimal integer of ``value``, such as 12 of `12 kB`, or None."""
    fields = (value or "").split()
    try:
        return int(fields[0]) if fields else None
    except ValueError:
        return None


def parse_syscall(data: bytes) -> Optional[Syscall]:
    """Parse /proc/PID/task/TID/syscall; None for `running` and for `-1` (not in a call)."""
    try:
        values = [int(word, 0) for word in data.split()[:7]]
    except ValueError:
        return None
    if len(values) < 7 or values[0] < 0:
        return None
    return Syscall(values[0], tuple(values[1:7]))


def parse_wchan(data: bytes) -> Optional[str]:
    """Parse /proc/PID/task/TID/wchan: `0` stands for running and for not permitted."""
    name = text(data.strip())
    return name if name and name != "0" else None


def parse_schedstat(data: bytes) -> Optional[int]:
    """Return nanoseconds on a CPU, the first number of /proc/PID/task/TID/schedstat."""
    fields = data.split()
    return number(fields[0]) if fields else None


def parse_exec_start(data: bytes) -> Optional[float]:
    """Return `se.exec_start` of /proc/PID/task/TID/sched in milliseconds of its CPU's clock.

    It is when the thread last began or continued to run, see `runclock`. None where the kernel
    has set it to zero, as it does when it moves a waiting thread to another CPU
    (kernel/sched/fair.c, migrate_task_rq_fair).
    """
    at = data.find(b"se.exec_start")
    if at < 0:
        return None
    value = data[at : data.find(b"\n", at)].partition(b":")[2]
    try:
        return float(value) or None
    except ValueError:
        return None


def environ(pid: int) -> Optional[Dict[str, str]]:
    """Return the environment a program was started with; None where it cannot be read."""
    data = read("/proc/%d/environ" % pid, MAX_ENVIRON)
    return None if data is None else parse_environ(data)


def parse_environ(data: bytes) -> Dict[str, str]:
    """Parse /proc/PID/environ: the environment the program was started with."""
    pairs = {}
    for entry in text(data).split("\0"):  # decoded at once: there are a hundred of them
        key, equals, value = entry.partition("=")
        if equals and key:
            pairs[key] = value
    return pairs


def parse_cmdline(data: bytes) -> Tuple[str, ...]:
    """Parse /proc/PID/cmdline; one argument where the process has overwritten its title."""
    if not data:
        return ()
    return tuple(text(arg) for arg in data.rstrip(b"\0").split(b"\0"))


def parse_limits(data: bytes) -> Dict[str, Optional[int]]:
    """Return the soft values of /proc/PID/limits by name; None is unlimited."""
    limits: Dict[str, Optional[int]] = {}
    for line in data.split(b"\n")[1:]:
        name, value = text(line[:26]).strip(), line[26:].split()
        if name and value:
            limits[name] = number(value[0])
    return limits


def parse_cgroup(data: bytes) -> Dict[str, str]:
    """Return cgroup paths by controller from /proc/PID/cgroup; version 2 has the key ''."""
    groups = {}
    for line in data.split(b"\n"):
        parts = line.split(b":", 2)
        if len(parts) == 3:
            for controller in parts[1].split(b","):
                groups[text(controller)] = text(parts[2])
    return groups


class Mount(NamedTuple):
    """One line of /proc/PID/mountinfo."""

    id: int
    device: str
    """`major:minor`, as /proc/locks names it too."""
    point: str
    fstype: str
    source: str
    root: str = "/"
    """What of the file system is mounted: of cgroups, as the reader's namespace names it."""
    options: str = ""
    """Of the file system; those of cgroups of version 1 name their controllers."""


def parse_mountinfo(data: bytes) -> List[Mount]:
    """Parse /proc/PID/mountinfo; malformed lines are left out."""
    mounts = []
    for line in data.split(b"\n"):
        left, dash, right = line.partition(b" - ")
        head, tail = left.split(b" "), right.split(b" ")
        ident = number(head[0])
        if not dash or len(head) < 5 or len(tail) < 2 or ident is None:
            continue
        point, source, root = (text(_unescape(w)) for w in (head[4], tail[1], head[3]))
        options = text(tail[2]) if len(tail) > 2 else ""
        mounts.append(Mount(ident, text(head[2]), point, text(tail[0]), source, root, options))
    return mounts


def mounts(pid: str) -> List[Mount]:
    """Return the mounts that a process sees; pid may be `self`."""
    return parse_mountinfo(read_all("/proc/%s/mountinfo" % pid) or b"")


def mount_of(path: str, mounts: Iterable[Mount]) -> Optional[Mount]:
    """Return the mount a path leads to, by its name: links in it are not followed."""
    best = None
    for mount in mounts:
        point = mount.point.rstrip("/")
        inside = path == point or path.startswith(point + "/")
        # Of mounts on one point the last covers the others.
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def _unescape(word: bytes) -> bytes:
    for code, char in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\")):
        word = word.replace(code, char)
    return word


def wait_status(status: int) -> int:
    """Return the exit code a wait status stands for, negative for a signal."""
    return -(status & 0x7F) if status & 0x7F else (status >> 8) & 0xFF


def read(path: str, limit: int = 1 << 20) -> Optional[bytes]:
    """Return a /proc file of one record, such as stat or environ, or None if unreadable."""
    return _read(path, limit, whole=False)


def read_all(path: str, limit: int = 16 << 20) -> Optional[bytes]:
    """Return a /proc file of many records, such as mountinfo or net/tcp, or None.

    The kernel hands such files out in whole records, so a short read is not their end.
    """
    return _read(path, limit, whole=True)


def _read(path: str, limit: int, whole: bool) -> Optional[bytes]:
    chunk = min(limit, 65536 if whole else 8192)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        data = os.read(fd, chunk)
        if not data or (len(data) < chunk and not whole):
            return data
        return _rest(fd, data, limit)
    except OSError:
        return None
    finally:
        os.close(fd)


def _rest(fd: int, data: bytes, limit: int) -> bytes:
    parts, total = [data], len(data)
    while total < limit:
        part = os.read(fd, min(65536, limit - total))
        if not part:
            break
        parts.append(part)
        total += len(part)
    return b"".join(parts)


def link(path: str) -> Optional[str]:
    """Return the target of a symbolic link of /proc, or None where it cannot be read."""
    try:
        return text(os.readlink(os.fsencode(path)))[:MAX_PATH]
    except OSError:
        return None


def namespace(pid: str, kind: str) -> Optional[int]:
    """Return the inode of a namespace of a process (namespaces(7)), or None; pid may be `self`."""
    found = link("/proc/%s/ns/%s" % (pid, kind)) or ""
    return number(found[len(kind) + 2 : -1].encode("utf-8", "replace"))


def shares(pid: int, kind: str) -> bool:
    """Whether a process is in the same namespace of this kind as we are."""
    return namespace(str(pid), kind) == namespace("self", kind)


def numbers(path: str) -> List[int]:
    """Return the numeric names in a directory, ascending: pids, thread ids, descriptors."""
    try:
        names = os.listdir(path)
    except OSError:
        return []
    return sorted(int(name) for name in names if name.isdigit())


def read_stat(pid: int) -> Optional[Stat]:
    """Return /proc/PID/stat parsed, or None for a process that is gone."""
    data = read("%s/%d/stat" % (PROC, pid))
    return parse_stat(data) if data else None


def age(stat: Stat) -> float:
    """Return the seconds since a process started; its start counts from boot, suspended or not."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - stat.start / CLOCK_TICKS


def states(pid: int, root: str = PROC) -> Dict[int, str]:
    """Return the state letter of every thread of a process; empty when it is gone."""
    found = {}
    for tid in numbers("%s/%d/task" % (root, pid)):
        stat = parse_stat(read("%s/%d/task/%d/stat" % (root, pid, tid)) or b"")
        if stat:
            found[tid] = stat.state
    return found


def is_to_stop(pid: int, root: str = PROC) -> bool:
    """Whether a SIGSTOP is pending for a process, which has not run since.

    See SigPnd and ShdPnd in proc(5). A tracer that dies right after it has attached leaves this.
    """
    for tid in numbers("%s/%d/task" % (root, pid)):
        pairs = parse_pairs(read("%s/%d/task/%d/status" % (root, pid, tid)) or b"")
        for name in ("SigPnd", "ShdPnd"):
            with contextlib.suppress(ValueError):
                if int(pairs.get(name) or "0", 16) >> (signal.SIGSTOP - 1) & 1:
                    return True
    return False
