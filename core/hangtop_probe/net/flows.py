"""Find threads that make progress, however slowly, on a connection that they wait on.

A thread that sends or receives ten kilobytes a second sleeps in the kernel and takes next to no
CPU: only TCP shows its progress. The kernel reports the bytes acknowledged and received (TCP_INFO
by sock_diag(7), in the probe's own network namespace; it needs no permission). Only the direction
that a thread waits for counts: a thread in recv receives, or its request is still being sent; a
thread in send sends. So a heartbeat, a scraped port or a watchdog, which use their connection for a
moment or wait for the next request, are no progress; neither is traffic to the store.
"""

from __future__ import annotations

import re
import socket
import struct
import time
from typing import TYPE_CHECKING, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from ..proc import procfs
from ..wire.guard import Guard, Hanging
from .sockets import inode_of

if TYPE_CHECKING:
    from ..proc.activity import ThreadRow

    Flow = Tuple[int, int, int]
    """Direction (`_IN` or `_OUT`), bytes, and milliseconds since the last of them."""

LOOK_S = 3.0
RATE, LOOP_RATE = 400.0, 2048.0
"""Bytes a second above any heartbeat: for a thread that waits for them alone, and for an event
loop, which may have a heartbeat beside other connections."""
OPENED = 1500
"""Bytes that a new connection counts for, beside its traffic."""
LEAST_S, MOST_S = 10.0, 30.0
"""Seconds at that rate whose bytes must arrive at least, and the seconds within which."""
LEAST = int(LOOP_RATE * LEAST_S)
MAX_SOCKETS = 32
"""Most sockets read of one process."""
MEMORY_S = 0.2
"""Seconds for reading the memory of a process: its lock may be held, see `guard`."""
MAX_TOLD = 2048
"""Most threads, and -tids, of one process; beyond it those of ended threads are forgotten."""
_IN, _OUT = 1, 4
"""POLLIN and POLLOUT, of poll and epoll alike."""
_WAYS = {
    **dict.fromkeys(("read", "readv", "recvfrom", "recvmsg"), _IN),
    **dict.fromkeys(("write", "writev", "sendto", "sendmsg", "sendfile"), _OUT),
}
_POLLS = ("poll", "ppoll", "select", "pselect6")
_OF_JOB = ("pt_", "NCCL", "cuda")
"""Prefixes of threads whose connections lead to other ranks, and of threads that wait for a GPU."""
_GLOO = "gloo_tcp_loop"
"""The thread of gloo's connections (gloo/transport/tcp/loop.cc), which carry collectives."""
_WATCHED = re.compile(rb"^tfd:\s+(\d{1,9}) events:\s+([0-9a-f]+)", re.M)
_ESTABLISHED = b"01"
_SOCK_DIAG, _BY_FAMILY, _INFO = 4, 20, 2
"""NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY and INET_DIAG_INFO of Linux 3.3."""
_SENT, _RECENT, _COUNTS = 44, 52, 120
"""Offsets in struct tcp_info of Linux 4.2: last_data_sent; last_data_recv and last_ack_recv, in ms;
bytes_acked and bytes_received."""


class Flows:
    """The progress of one process on its connections."""

    def __init__(
        self, pid: int, clock: Callable[[], float] = time.monotonic, guard: Optional[Guard] = None
    ) -> None:
        self._guard = guard or Guard(1)
        self._base = "/proc/%d/" % pid
        self._clock = clock
        self._due = 0.0
        self._ran: Dict[int, Optional[bytes]] = {}
        """Scheduler statistics of gloo's threads, by thread id."""
        self._questions: Dict[int, Optional[bytes]] = {}
        """The sock_diag request for a socket, by inode; None for sockets that do not count."""
        self._had: Dict[Tuple[int, int], int] = {}
        """Bytes at the last reading of a socket, by inode and direction."""
        self._counted: Dict[Tuple[int, int], Tuple[float, int]] = {}
        """Start of counting and bytes, by thread, and by socket where a thread waits on several."""
        self._told: Dict[int, int] = {}

    def look(self, rows: Sequence[ThreadRow], store: str = "") -> List[List[int]]:
        """Return pairs of thread id and bytes so far for threads that made progress.

        A negative thread id stands for a thread that waits on several connections, with the number
        of readings at which data had just arrived on one of them.

        Args:
            rows: threads of the process.
            store: port of the job's store.
        """
        now = self._clock()
        if now >= self._due:
            self._due = now + LOOK_S
            self._measure(rows, store, now)
            if len(self._told) > MAX_TOLD:
                tids = {row.tid for row in rows}
                self._told = {tid: n for tid, n in self._told.items() if abs(tid) in tids}
        return [list(pair) for pair in self._told.items()]

    def _measure(self, rows: Sequence[ThreadRow], store: str, now: float) -> None:
        """Count the bytes on the connections that these threads wait on."""
        gloo = {row.tid for row in rows if row.name == _GLOO}
        awake = self._awake(rows, gloo)
        waits = [(row.tid, *wait) for row in awake for wait in self._waits(row)][:MAX_SOCKETS]
        inodes = [inode for _, inode, _, _ in waits]
        self._ask(set(inodes), store)
        before, self._counted = self._counted, {}
        for tid, inode, direction, alone in waits:
            question = self._questions.get(inode)
            flows = question and counts(question)
            if flows:
                if not alone and tid not in gloo and _just_received(flows, direction):
                    self._told[-tid] = self._told.get(-tid, 0) + 1
                key = tid, 0 if alone else inode
                # An answer follows the whole request, unless other threads send there.
                also = _OUT * (alone and inodes.count(inode) == 1)
                count = self._moved(flows, inode, (direction, also), key in before, tid in gloo)
                self._counted[key] = self._count(key, *before.get(key, (now, 0)), count)
        self._keep(before, awake)

    def _keep(
        self, before: Dict[Tuple[int, int], Tuple[float, int]], rows: List[ThreadRow]
    ) -> None:
        """Keep the counts of threads seen running: they return to their connection."""
        busy = {row.tid for row in rows if row.state in "RD"}
        for key in before.keys() - self._counted.keys():
            if key[0] in busy:
                self._counted[key] = before[key]

    def _awake(self, rows: Sequence[ThreadRow], gloo: "set[int]") -> List[ThreadRow]:
        """Return the threads to examine: not those of collectives, and gloo's only if they ran."""
        rests = self._rest(gloo)
        return [r for r in rows if r.tid not in rests and not r.name.startswith(_OF_JOB)]

    def _ask(self, inodes: "set[int]", store: str) -> None:
        """Prepare the requests for new sockets."""
        if len(self._questions) > 4 * MAX_SOCKETS:
            self._questions, self._had = {}, {}
        new = inodes.difference(self._questions)
        if new:
            self._questions.update(questions(self._base, new, store))

    def _moved(
        self, flows: Sequence[Flow], inode: int, ways: Tuple[int, int], stayed: bool, gloo: bool
    ) -> int:
        """Return the bytes in the direction of a wait, else, if it lasts, those of its request."""
        way, also = ways
        came = {
            flow[0]: self._came(flow, inode, stayed, gloo)
            for flow in flows
            if flow[0] & (way | also)
        }
        count = sum(n for direction, n in came.items() if direction & way)
        return count if count or not stayed else came.get(also, 0)

    def _rest(self, gloo: "set[int]") -> "set[int]":
        """Return gloo's threads that have not run since the last reading: no data arrived."""
        before, names = self._ran, {tid: "%stask/%d/schedstat" % (self._base, tid) for tid in gloo}
        self._ran = {tid: procfs.read(name) for tid, name in names.items()}
        return {tid for tid, ran in self._ran.items() if tid in before and before[tid] == ran}

    def _came(self, told: Flow, inode: int, stayed: bool, gloo: bool) -> int:
        """Return the bytes on a socket while its thread kept waiting.

        All bytes of a new socket count if it was opened meanwhile. At the first reading of a
        thread, many bytes count if the last ones are recent, except for gloo, where they belong to
        the last step.
        """
        way, count, ago_ms = told
        old = self._had.get((inode, way))
        self._had[inode, way] = count
        if old is not None:
            return max(count - old, 0) if stayed else 0
        if gloo:
            return 0
        if stayed:
            return count + OPENED
        return count if count >= LEAST and ago_ms < LEAST_S * 1000 else 0

    def _count(
        self, key: Tuple[int, int], since: float, before: int, came: int
    ) -> Tuple[float, int]:
        now, count, rate = self._clock(), before + came, LOOP_RATE if key[1] else RATE
        if count >= rate * max(now - since, LEAST_S):
            self._told[key[0]] = self._told.get(key[0], 0) + count
        elif now - since < MOST_S:
            return since, count
        return now, 0

    def _waits(self, row: ThreadRow) -> Iterator[Tuple[int, int, bool]]:
        """Yield inode and direction of each socket a thread waits on, and whether it is the one."""
        call = row.syscall or ""
        fds: List[Tuple[int, int]] = []
        if call in _WAYS:
            fds = [(row.fd or 0, _WAYS[call])]
        elif call.startswith("epoll_"):
            fds = watched(self._base, row.fd or 0)
        elif call in _POLLS:
            fds = self._polled(row.tid, call)
        for fd, direction in fds[:MAX_SOCKETS]:
            inode = inode_of(procfs.link("%sfd/%d" % (self._base, fd)) or "")
            if inode is not None and direction & (_IN | _OUT):
                yield inode, direction, len(fds) == 1 and call[:5] != "epoll"

    def _polled(self, tid: int, name: str) -> List[Tuple[int, int]]:
        """Return descriptors and events that a thread polls, from the list its call points to."""
        call = procfs.parse_syscall(procfs.read("%stask/%d/syscall" % (self._base, tid)) or b"")
        if call is None:
            return []
        first, second, third = call.args[:3]
        try:
            if name.endswith("poll"):
                data = self._memory(first, 8 * min(second, MAX_SOCKETS))
                polled = struct.iter_unpack("=ihh", data[: len(data) & ~7])
                return [(fd, direction) for fd, direction, _ in polled]
            found = []
            for place, direction in ((second, _IN), (third, _OUT)):
                data = self._memory(place, min(first, 1024) + 7 >> 3) if place else b""
                bits = int.from_bytes(data, "little")
                found += [(fd, direction) for fd in range(bits.bit_length()) if bits >> fd & 1]
            return found
        except (OSError, ValueError, OverflowError, Hanging):
            return []

    def _memory(self, place: int, size: int) -> bytes:
        def read() -> bytes:
            with open(self._base + "mem", "rb", 0) as memory:
                memory.seek(place)
                return memory.read(size)

        return self._guard.call(read, MEMORY_S)


def watched(base: str, fd: int) -> List[Tuple[int, int]]:
    """Return the descriptors that an epoll watches, each with its events."""
    told = procfs.read("%sfdinfo/%d" % (base, fd), 1 << 14) or b""
    return [(int(one), int(events, 16)) for one, events in _WATCHED.findall(told)]


def questions(base: str, inodes: "set[int]", store: str) -> Dict[int, Optional[bytes]]:
    """Return the sock_diag requests for TCP sockets that do not lead to the store, by inode."""
    requests: Dict[int, Optional[bytes]] = dict.fromkeys(inodes)
    wanted = {b"%d" % inode for inode in inodes}
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in (procfs.read_all("%snet/%s" % (base, name)) or b"").split(b"\n"):
            fields = line.split(None, 10)
            if len(fields) < 10 or fields[9] not in wanted or fields[3] != _ESTABLISHED:
                continue
            try:
                ends = [_end(fields[1]), _end(fields[2])]
            except (ValueError, struct.error):
                continue
            if store not in [str(port) for _, port in ends]:
                (own, port), (far, other) = ends
                requests[int(fields[9])] = (
                    # inet_diag_req_v2: of any state, with TCP_INFO
                    struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 0, 0xFFF)
                    + struct.pack("!HH16s16s", port, other, own, far)
                    + struct.pack("=Iq", 0, -1)
                )
    return requests


def _end(field: bytes) -> Tuple[bytes, int]:
    """Return the address as it is in memory, and the port, of `0100007F:1F90`."""
    words, port = field.split(b":")
    raw = [int(words[at : at + 8], 16) for at in range(0, len(words), 8)]
    return struct.pack("=%dI" % len(raw), *raw), int(port[:4], 16)


def _just_received(flows: Sequence[Flow], way: int) -> bool:
    """Return whether awaited data arrived since the last reading."""
    return any(
        direction == way & _IN and count and ago_ms < LOOK_S * 1000
        for direction, count, ago_ms in flows
    )


def counts(question: bytes) -> Optional[Sequence[Flow]]:
    """Return the acknowledged and the received bytes of a socket, or None if unknown."""
    info = _info(question)
    if not info:
        return None
    came, acked = struct.unpack_from("=II", info, _RECENT)
    out, into = struct.unpack_from("=QQ", info, _COUNTS)
    return (_OUT, out, acked), (_IN, into, came)


def answered(pid: int, inodes: "set[int]") -> Iterator[int]:
    """Yield the inodes of TCP sockets without an answer to the last data sent."""
    asked = questions("/proc/%d/" % pid, inodes, "") if inodes else {}
    for inode, question in list(asked.items())[:MAX_SOCKETS]:
        info = question and _info(question)
        if info:
            (into,) = struct.unpack_from("=Q", info, _COUNTS + 8)
            sent, came = (struct.unpack_from("=I", info, at)[0] for at in (_SENT, _RECENT))
            if not into or sent <= came:
                yield inode


def _info(question: bytes) -> bytes:
    """Return struct tcp_info of a socket, or nothing where it is unknown."""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as asking:
            asking.settimeout(0.1)
            header = struct.pack("=IHHII", 16 + len(question), _BY_FAMILY, 1, 0, 0)
            asking.send(header + question)
            data = asking.recv(8192)
        size, kind = struct.unpack_from("=IH", data)
        at = 16 + 72  # nlmsghdr, inet_diag_msg
        while kind == _BY_FAMILY and at + 4 <= size:
            length, what = struct.unpack_from("=HH", data, at)
            if what == _INFO and min(length, len(data) - at) >= 4 + _COUNTS + 16:
                return data[at + 4 : at + length]
            at += max(length + 3 & ~3, 4)
    except (OSError, struct.error):
        pass
    return b""
