"""Read the current activity of a process, its threads' waits and its counters, with no attach.

A thread whose time on a CPU (schedstat) did not move since the last pass did not run, so its
wait is unchanged: it is read again only after the thread ran. So a hung process costs one short
read per thread.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Set, Tuple

from . import processname, procfs, syscalls
from .printed import Printed

if TYPE_CHECKING:
    from .runclock import RunClock


class ThreadRow(NamedTuple):
    """One thread; the fields of model.Thread."""

    tid: int
    name: str
    state: str
    wchan: Optional[str]
    syscall: Optional[str]
    fd: Optional[int]
    futex: Optional[str]


MAX_THREADS = 512
"""Most threads reported of one process; their count is reported besides."""
IN_TURN, IN_TURN_AT_REST = 16, 64
"""Threads beside the main thread that are read in one pass, while that runs and while it sleeps:
a rank may have hundreds, and their waits matter once it makes no progress."""


class Activity:
    """Threads and meters of one process over the passes."""

    def __init__(self, pid: int) -> None:
        self.pid = self.main = pid
        """The thread that runs the program, mostly the main thread."""
        self._rows: Dict[int, ThreadRow] = {}
        self._ran: Dict[int, bytes] = {}
        self._next = self._turns = 0
        """Whose turn it is, and how often all have had theirs."""
        self._sched_of: Optional[bytes] = None
        self._sched: Tuple[Optional[float], Optional[int]] = (None, None)
        self._looked: Optional[float] = None
        """Time of the last reading of the main thread, in monotonic seconds."""
        self._wait: Optional[List[bytes]] = None
        self._waits = 0
        self._stirred = False
        """Whether any thread ran in this round."""
        self._printed: Optional[Printed] = None
        self._read: Tuple[Optional[int], Optional[int]] = (None, None)
        """rchar of the process, and of its main thread alone when that was last read."""

    def lead(self, tid: int) -> None:
        """Set the thread that runs the program."""
        if tid != self.main:
            self.main, self._sched_of, self._looked, self._wait = tid, None, None, None

    def threads(self, by_us: bool = False) -> List[ThreadRow]:
        """Return the rows of all threads, main thread first; empty for a zombie.

        While a tool of ours traces the process (``by_us``), a thread it stopped is shown as it
        was before.
        """
        self._stirred = False
        base = "/proc/%d/task/" % self.pid
        others = [tid for tid in procfs.numbers(base) if tid != self.main][: MAX_THREADS - 1]
        before = self._ran.get(self.main)
        main = self._thread(base + str(self.main), self.main)
        rests = before is not None and before == self._ran.get(self.main)
        due = self._in_turn(others, rests)
        rows: Dict[int, ThreadRow] = {}
        for tid in (self.main, *others):
            row = main if tid == self.main else self._rows.get(tid)
            if row is None or tid in due:
                row = self._thread(base + str(tid), tid)
            if row is not None and row.state == "t" and by_us:
                row = self._rows.get(tid, row._replace(state="S", wchan=None))
            if row is not None:
                rows[tid] = row
        self._rows = rows
        self._ran = {tid: ran for tid, ran in self._ran.items() if tid in rows}
        return sorted(rows.values(), key=lambda row: (row.tid != self.main, row.tid))

    def _in_turn(self, others: List[int], rests: bool) -> Set[int]:
        """Return the other threads to read in this pass."""
        most = IN_TURN_AT_REST if rests else IN_TURN
        begin = self._next if self._next < len(others) else 0
        end = begin + most
        self._next = end if end < len(others) else 0
        self._turns += not self._next
        return set(others[begin:end])

    def _thread(self, base: str, tid: int) -> Optional[ThreadRow]:
        ran = procfs.read(base + "/schedstat", 128)
        old = self._rows.get(tid)
        # Every sixteenth time all is read again, against kernels with lazy accounting.
        fresh = (tid + self._turns) % 16 == 0
        if old is not None and ran and not fresh and ran == self._ran.get(tid):
            return old
        if ran:
            self._stirred = self._stirred or ran != self._ran.get(tid)
            self._ran[tid] = ran
        if tid == self.main:
            self._note_wait(base)
        return read_thread(base, tid)

    def _note_wait(self, base: str) -> None:
        """Count the different waits of the main thread.

        The line of a thread that waits ends with the arguments of its call, its stack pointer
        and its program counter. A thread that was traced, stopped or frozen is sent back into
        the very same call by the kernel; only the number of the call may be restart_syscall's
        then. A thread that runs has no such line: what it waits in next is still to come.
        """
        line = (procfs.read(base + "/syscall", 512) or b"").split()
        if len(line) == 9 and line[1:] != self._wait:
            self._wait = line[1:]
            self._waits += 1

    def meters(self, stat: procfs.Stat, clock: RunClock) -> Dict[str, Any]:
        """Return the fields of meters.Meters, of the moment `threads` was called."""
        now = time.monotonic()
        ran_at, switches = self._scheduled(stat, clock, now)
        io = procfs.read("/proc/%d/io" % self.pid) or b""
        whole = procfs.value_of(io, b"wchar")
        read = procfs.value_of(io, b"rchar")
        if self._stirred or self._printed is None:
            self._printed = Printed.after(self._printed, self.pid, whole)
        last_ran = None if ran_at is None else max(0.0, round(now - ran_at, 2))
        return {
            "cpu_s": round(stat.cpu_ticks / procfs.CLOCK_TICKS, 2),
            "main_cpu_ns": procfs.parse_schedstat(self._ran.get(self.main, b"")),
            "main_switches": switches,
            "main_waits": self._waits or None,
            "main_last_ran_s": last_ran,
            "read_bytes": read,
            "main_read_bytes": self._read_by_main(read),
            "write_bytes": whole,
            "printed_bytes": self._printed.total,
            "main_printed_bytes": self._printed.main,
            "rss": stat.rss,
        }

    def _read_by_main(self, whole: Optional[int]) -> Optional[int]:
        """Return rchar of the main thread: looked up only after the process has read anything."""
        if whole is not None and whole != self._read[0]:
            io = procfs.read("/proc/%d/task/%d/io" % (self.pid, self.main)) or b""
            self._read = whole, procfs.value_of(io, b"rchar")
        return self._read[1]

    def _scheduled(
        self, stat: procfs.Stat, clock: RunClock, now: float
    ) -> Tuple[Optional[float], Optional[int]]:
        """Return when the main thread last ran, monotonic seconds, and its voluntary switches.

        The kernel takes a while to write that file, so it is read only after the thread ran; and
        a thread that was seen to run ran since the last look, whatever the scheduler's clock says.
        """
        ran = self._ran.get(self.main)
        if ran is None or ran != self._sched_of:
            base = "/proc/%d/task/%d/" % (self.pid, self.main)
            sched = procfs.read(base + "sched") or b""
            if self.main != self.pid:
                stat = procfs.parse_stat(procfs.read(base + "stat") or b"") or stat
            at = clock.ran_at(stat.cpu, procfs.parse_exec_start(sched))
            if ran is not None and self._sched_of is not None:
                at = max(self._looked or now, now if at is None else at)
            if at is not None:
                at = min(max(at, now - procfs.age(stat)), now)
            self._sched_of = ran
            self._sched = at, procfs.value_of(sched, b"nr_voluntary_switches")
        self._looked = now
        return self._sched


def read_thread(base: str, tid: int) -> Optional[ThreadRow]:
    """Read one thread below ``base`` (/proc/PID/task/TID); None when it is gone."""
    stat = procfs.parse_stat(procfs.read(base + "/stat") or b"")
    if stat is None:
        return None
    wchan = procfs.parse_wchan(procfs.read(base + "/wchan") or b"")
    call = procfs.parse_syscall(procfs.read(base + "/syscall") or b"")
    if call is None:
        return ThreadRow(tid, stat.comm, stat.state, wchan, None, None, None)
    name = syscalls.name(call.number)
    fd = _descriptor(call.args[0]) if syscalls.takes_descriptor(name) else None
    futex = "%#x" % call.args[0] if name == "futex" else None
    if name == "wait4":  # for any child it is negative
        futex = str(_descriptor(call.args[0]) or "") or None
    return ThreadRow(tid, stat.comm, stat.state, wchan, name, fd, futex)


def _descriptor(argument: int) -> Optional[int]:
    """Return the descriptor; None for AT_FDCWD and other negative values."""
    low = argument & 0xFFFFFFFF
    return low if low < 1 << 31 else None


def thread_names(pid: int) -> Dict[int, str]:
    """Return the names of all threads, which needs no permission."""
    base = "/proc/%d/task/" % pid
    names = {}
    for tid in procfs.numbers(base)[:MAX_THREADS]:
        data = procfs.read("%s%d/comm" % (base, tid))
        if data is not None:
            names[tid] = processname.masked(procfs.text(data.strip()))
    return names
