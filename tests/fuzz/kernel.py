"""What the kernel of a node says, where it is used, and files of its users: their programs."""

from __future__ import annotations

import io
import os
import tempfile
from contextlib import ExitStack, suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from fuzz.node import proc_files
from fuzz.target import target
from hangtop_probe.cores import cores
from hangtop_probe.descriptors import beside, nodewide
from hangtop_probe.files import fileposition, pipelines
from hangtop_probe.net import flows, stalled
from hangtop_probe.nettest import nettest_links
from hangtop_probe.node import cgroupload, cgroups, node, permission
from hangtop_probe.proc import activity, printed, procfs, rest
from hangtop_probe.stacks import sources, tracing
from hangtop_probe.table import facts
from hangtop_probe.wire import wire
from hangtop_probe.wire.guard import Guard

if TYPE_CHECKING:
    from collections.abc import Callable

POLLS = activity.ThreadRow(1, "python", "S", None, "poll", 3, None)
READS = POLLS._replace(syscall="read")
WAITS = POLLS._replace(syscall="epoll_wait")
EPOLL = b"pos:\t0\nflags:\t02\ntfd:        5 events:       19 data: 5  pos:0 ino:4e sdev:8\n"
SMAPS = b"""7f1c8000-7f1c9000 rw-p 00000000 fe:00 17   /opt/a b/libtorch_cpu.so
Size:                  4 kB
Anonymous:             4 kB
VmFlags: rd wr mr mw me ac sd
"""
GROUP = b"low 0\nhigh 3\nmax 7\noom_kill 1\nworkingset_refault_anon 9\n"
MEMORY = b"MemTotal: 16 kB\nMemAvailable: 8 kB\noom_kill 3\nfull avg10=12.5 avg60=0.00 total=1\n"
ROUTE = b"Iface\tDestination\tGateway\neth0\t00000000\t0100A8C0\t3\t0\t0\t0\t00000000\t0\t0\t0\n"


def _flows() -> flows.Flows:
    return flows.Flows(1)


READERS: tuple[Callable[[], object], ...] = (
    lambda: activity.read_thread("/proc/1/task/1", 1),
    lambda: activity.Activity(1).threads(),
    lambda: printed.Printed.after(None, 1, 1),
    lambda: beside.holder(1, beside.HOLDS),
    lambda: beside.lock_files(1, nodewide.Node()),
    lambda: cgroupload.read("/sys/fs/cgroup/a"),
    lambda: cgroups.places(procfs.mounts("1")),
    lambda: cgroups.read(1),
    lambda: facts.describe(1, facts.read_facts(1, permission.rights())),
    lambda: facts.uid_of(1),
    lambda: fileposition.Position(1, Guard()).look(READS),
    lambda: [_flows()._polled(1, name) for name in ("poll", "select")],
    lambda: [list(_flows()._waits(one)) for one in (POLLS, READS, WAITS)],
    lambda: [*flows.questions("/proc/1/", {7, 20134, 20135}, "29500")],
    lambda: nettest_links.default_interface(),
    lambda: nettest_links.ephemeral_ports(),
    lambda: node.addresses(),
    lambda: node.boot_time(),
    lambda: node.memory(),
    lambda: permission.why_denied(1, permission.rights()),
    lambda: pipelines._mode(1, 1),
    lambda: rest.mark(1),
    lambda: stalled._read(1),
    lambda: tracing.halted(procfs.states(1)),
)


def proc_seeds() -> list[bytes]:
    return [*proc_files(), EPOLL, SMAPS, GROUP, MEMORY, ROUTE]


@target(proc_seeds)
def proc_where_it_is_used(data: bytes) -> None:
    """Whatever stands in all files of /proc and /sys, what is made of it can be sent."""
    with ExitStack() as stack:
        for name in ("read", "read_all"):
            stack.enter_context(
                mock.patch.object(procfs, name, lambda _, most=1 << 20: data[:most])
            )
        link = data[:200].decode("utf-8", "replace").replace("\0", "")
        stack.enter_context(mock.patch.object(procfs, "link", return_value=link))
        stack.enter_context(mock.patch.object(procfs, "numbers", return_value=[1, 7]))
        memory = mock.Mock(side_effect=lambda *_: io.BytesIO(data))
        stack.enter_context(mock.patch.object(flows, "open", memory, create=True))
        for read in READERS:
            with suppress(PermissionError):
                found = read()
                if isinstance(found, dict):
                    wire.encode(found)
    cores.estimate(data)


def answers_of_netlink() -> list[bytes]:
    """As this machine's kernel gives them."""
    found: list[bytes] = []

    class Listening(nettest_links.socket.socket):
        def recv(self, *size: int) -> bytes:
            found.append(super().recv(*size))
            return found[-1]

    with mock.patch("socket.socket", Listening):
        nettest_links.read()
    # struct nlmsghdr, struct inet_diag_msg, one attribute: INET_DIAG_INFO
    told = bytes([248, 0]) + flows._INFO.to_bytes(2, "little") + bytes(range(244))
    whole = (16 + 72 + len(told)).to_bytes(4, "little") + bytes([flows._BY_FAMILY, 0])
    return [*(one[:8192] for one in found), whole + bytes(10 + 72) + told]


@target(answers_of_netlink)
def netlink(data: bytes) -> None:
    """The kernel's answers about connections and interfaces, which differ by its version."""
    done = (16).to_bytes(4, "little") + bytes([nettest_links._DONE, 0]) + bytes(10)
    for ask in (lambda: flows.counts(b"?"), nettest_links.read):
        end = mock.MagicMock()
        end.__enter__.return_value = SimpleNamespace(
            settimeout=mock.Mock(), bind=mock.Mock(), send=mock.Mock(), sendto=mock.Mock(),
            recv=mock.Mock(side_effect=[data, done, data, done]),
        )  # fmt: skip
        with mock.patch("socket.socket", return_value=end), suppress(OSError):
            found: Any = ask()
            wire.encode({"found": found})


PROGRAM = b'''import torch.distributed as dist
class Trainer:
    """Steps."""
    def __init__(self, rank: int = 0, world=(1, [2, {"a": 3}])):
        self.verbose = rank == 0 and not os.environ.get("Q")
        self.writer = Writer("x") if is_main_process() else None
        main: bool = self.rank == 0
    async def step(self, batch, *more):
        queue, seen = [batch], set()
        while queue:
            one = queue.pop()
            if one not in seen:
                seen.add(one)
                queue.append(one.next)  # new ones
        while len(queue) < 3 and main:
            i += 1
        for epoch in range(3):
            if main: self.writer.add(1); return
            elif dist.get_rank() == 0:
                with lock, open(f"/x/{epoch}") as f:
                    try:
                        dist.barrier(
                            group=None,
                        )
                    except (OSError, ValueError) as error:
                        print('it''s', """ " """, error) if self.verbose else None
            else:
                req = dist.isend(batch, dst=1); req.wait()
                assert [x for x in batch if rank == 0 and x.ready()] \\
                    or lambda: {1: 2}
@dist.only_on(rank=0)
def on_signal(signum, frame): sys.exit(1)
'''


@target(lambda: [PROGRAM, PROGRAM.replace(b"\n", b"\r\n").replace(b"    ", b"\t")])
def program(data: bytes) -> None:
    """Of any file what its lines stand in is told, shortly and without a secret."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm", suffix=".py") as file:
        file.write(data)
        file.flush()
        os.utime(file.name, (0, 0))  # as it was when the process began
        last = data.count(b"\n") + 1
        numbers = sorted({1 + last * part // 24 for part in range(25)} | {2**31 - 1})
        for first in range(0, len(numbers), 8):
            rows: list[Any] = [
                ["f", file.name, "x.py", number, False, None, None, None]
                for number in numbers[first : first + 8]
            ]
            sources.add(os.getpid(), rows)
            for row in rows:
                assert len(row[5] or "") <= sources.MAX_LINE + len(sources.NEWER)
                for some in row[6:]:
                    assert all(len(text) < 3 * sources._MAX_HEAD for _, text in some or ())
            wire.encode({"rows": rows})
