"""Decoders on a node: /proc, the kernel log, what tools print, frames, what a recorder holds."""

from __future__ import annotations

import functools
import io
import json
import os
import pickle
import resource
import socket
import tempfile
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any
from unittest import mock

from fuzz.target import expect_harmless, target, text_of
from hangtop_core.analysis.flight.groups import group_lines
from hangtop_core.analysis.flight.picture import examine
from hangtop_core.analysis.flight.sequences import number_lines
from hangtop_core.attach.wire.reader import Reader
from hangtop_core.dumps.reader import decode
from hangtop_core.model.recorder.columns import trace_of
from hangtop_core.report.flight import flight_text
from hangtop_probe.descriptors import descriptors, locks
from hangtop_probe.gpu import gpus, nics
from hangtop_probe.net import sockets
from hangtop_probe.nettest import nettest_ports, nettest_ranks
from hangtop_probe.node import cgroups, kernellog
from hangtop_probe.output import numerics
from hangtop_probe.proc import procfs
from hangtop_probe.ranks import learned, versions
from hangtop_probe.ranks.candidates import Candidate
from hangtop_probe.ranks.discovery import attribute
from hangtop_probe.recorder import ras, torchstore, workerserver
from hangtop_probe.recorder.columns import MAX_ENTRIES, reduce
from hangtop_probe.recorder.unpickle import ForeignError, RefusedError, TruncatedError
from hangtop_probe.secrets import mask
from hangtop_probe.stacks import otherends, stacks, strace
from hangtop_probe.table import environment
from hangtop_probe.wire import relay, wire
from hangtop_probe.wire.requests import Refused
from hangtop_probe.wire.tools import Done
from support import flight, sysfs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hangtop_core.model.recorder.trace import Trace

PARSERS = (
    procfs.number,
    procfs.parse_stat,
    procfs.parse_pairs,
    procfs.parse_syscall,
    procfs.parse_wchan,
    procfs.parse_schedstat,
    procfs.parse_exec_start,
    procfs.parse_environ,
    procfs.parse_cmdline,
    procfs.parse_limits,
    procfs.parse_cgroup,
    procfs.parse_mountinfo,
    cgroups.pairs,
    locks.parse_locks,
    sockets.parse_unix,
    descriptors.parse_info,
)
UNIX = b"""Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 20411 @/tmp/dbus x
"""
TCP = b"""  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 20134 1
   1: 0000000000000000FFFF00000100007F:1F90 00000000000000000000000001000000:0001 01 00000000:00000002 01:00000019 00000003 0 0 20135
"""
INFO = b"pos:\t0\nflags:\t02004002\nmnt_id:\t15\nino:\t77\nlock:\t1: POSIX  ADVISORY  WRITE 2 fe:00:77 0 EOF\n"


def proc_files() -> list[bytes]:
    """What this process says of itself, which nothing of the machine's state is missing in."""
    names = (
        "stat status sched syscall wchan schedstat environ cmdline limits cgroup mountinfo "
        "net/tcp net/tcp6 net/udp net/unix"
    )
    found = [procfs.read_all(f"/proc/self/{name}") or b"" for name in names.split()]
    return [one[:4000] for one in found if one] + [UNIX, TCP, INFO, b"0 0xd 0x1 0x0 0x7ffe"]


@target(proc_files)
def proc(data: bytes) -> None:
    """No parser ever raises, and none makes much of little."""
    for parse in PARSERS:
        parse(data)
    for family in ("tcp", "udp"):
        assert len(sockets.parse_inet(data, family)) <= data.count(b"\n")
    procfs.value_of(data, b"nr_switches")
    versions.parse_version_file(text_of(data))
    mounts = procfs.parse_mountinfo(data)
    assert len(mounts) <= data.count(b"\n") + 1


@target(lambda: [b"6,1201,5140900,-;NVRM: Xid (PCI:0000:17:00): 79, pid=1234\n SUBSYSTEM=pci\n"])
def kernel_record(data: bytes) -> None:
    """A record is read or left out; its text is short."""
    told = kernellog.parse(data, 1.7e9)
    assert told is None or len(told[1]) <= kernellog.MAX_TEXT
    json.dumps(told, allow_nan=False)


def environments() -> list[bytes]:
    pairs = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "SLURM_PROCID": "1",
             "MASTER_ADDR": "10.0.0.1", "TORCHELASTIC_RUN_ID": "none", "HF_TOKEN": "hf_abc"}  # fmt: skip
    env = b"\0".join(f"{key}={value}".encode() for key, value in pairs.items())
    return [
        b"/venv/bin/python\0/venv/bin/torchrun\0--nproc-per-node=2\0train.py\0\0\0" + env,
        b"python\0-u\0-m\0torch.distributed.run\0--rdzv-endpoint=[::1]:29500\0a.py\0\0\0" + env,
        b"python\0train.py\0--token\0s3cret\0https://u:p@host/x?sig=1\0\0\0" + env,
    ]


@target(environments)
def process_table(data: bytes) -> None:
    """A command line and an environment never keep the others from being found."""
    words, _, env = data.partition(b"\0\0\0")
    cmdline, environ = procfs.parse_cmdline(words), procfs.parse_environ(env)
    some = [
        Candidate(pid, ppid, pid, "python", cmdline, environ, True)
        for pid, ppid in ((10, 1), (20, 10), (21, 20))
    ]
    found = attribute({one.pid: one for one in some})
    assert set(found) <= {10, 20, 21}
    assert len(mask.mask_arguments(cmdline)) <= 129
    json.dumps(environment.allowed(environ))


MASKED = (
    b"train --api-key sk-abcdefghijklmnopqrstuv WANDB=0123456789abcdef0123456789abcdef01234567",
    b"Authorization: Bearer abcdefghijklmnop https://u:p@host/x?sig=abc&y=1 login u password p",
    b"-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n-----END PRIVATE KEY-----\nx",
    b'12:00:00.5 write(1</a>, "hf_abcdefghijklmnopqrst"..., 64) = 64 <0.00001>',
    b'[pid 7] 12:00:00.5 execve("/bin/x", ["x", "--token", "abc"...], 0x7ffe /* 9 vars */) = 0',
    b"7f1c8000-7f1c9000 r-xp 00000000 fe:00 17   /opt/a b/torch/lib/libtorch_cpu.so",
)


@target(lambda: list(MASKED))
def masking(data: bytes) -> None:
    """Whatever is masked stays about as long, and masking it again changes no more than that."""
    text = text_of(data)
    masked = mask.mask_text(text)
    assert masked.count("\n") == text.count("\n")
    assert len(masked) <= len(text) + 3 * masked.count(mask.MASK)
    for line in data.split(b"\n"):
        assert len(strace._shown(line)) <= 1000
        strace._IDLE.search(line), strace._POLLING.match(line)
    versions._mapped(versions._TORCH, data), versions._mapped(versions._NCCL, data)


def dumped() -> list[bytes]:
    frames = [
        {"name": "_wrap", "filename": "/s/torch/multiprocessing/spawn.py", "line": 3,
         "short_filename": None, "module": None, "locals": [{"name": "i", "repr": "3", "arg": True}]},
        {"name": "recv", "filename": "", "line": 0, "module": "/lib/libc.so", "locals": None},
    ]  # fmt: skip
    thread = {"thread_name": "MainThread", "os_thread_id": 7, "active": False, "owns_gil": True}
    return [json.dumps([{**thread, "frames": frames}, {**thread, "frames": []}]).encode()]


class Printing:
    """Stands in for running py-spy: it has printed this."""

    def __init__(self, out: bytes) -> None:
        self.out = out

    def run(self, *_: Any) -> Done:
        return Done(0, self.out, b"")


@target(dumped)
def py_spy(data: bytes) -> None:
    """What py-spy prints is stacks, or the reason why there are none."""
    with mock.patch("hangtop_probe.node.node.find_py_spy", return_value="py-spy"):
        found = stacks.sample(
            Printing(data),  # type: ignore[arg-type]
            os.getpid(), "nonblocking", True, 1.0, threading.Event(),
        )  # fmt: skip
    learned.learn(found)
    for wants in (True, False):
        otherends.ordered(7, found, wants)
    if found.failure is None:
        wire.encode({"threads": found.threads, "stacks": found.stacks})


@target(
    lambda: [
        b'{"node": {"driver": "550"}}\n{"gpu": 0, "fields": {"at": 1, "processes": [[7, 100]]}}\n'
        b'{"gpu": 0, "fields": {"mig_devices": [{"processes": [[7, null]]}]}}\n'
        b'{"on": 1}\n{"xid": 79, "gpu": 0, "at": 1.5}\n{"pause": 2}\n{"error": "x"}\n'
    ]
)
def nvml_child(data: bytes) -> None:
    """What a library prints between the lines of the process that asks NVML does no harm."""
    taker = gpus.Gpus.__new__(gpus.Gpus)
    taker._lock, taker.about, taker.gpus = threading.Lock(), {}, {}
    taker._on, taker._pause, taker._done = None, 0.0, False
    for line in data.split(b"\n"):
        taker._take(line)
    assert len(taker.gpus) <= gpus.MAX_GPUS + 1


def messages() -> list[bytes]:
    small = wire.encode({"id": 1, "seq": 0, "data": {"a": [1, 2, "x" * 60]}})
    packed = wire.encode({"id": 1, "data": list(range(900))})
    cut = wire.encode({"id": 2, "data": Random(1).randbytes(900).hex()}, 3, 400)
    return [b"".join(some) for some in (small, [b"Welcome\r\n", *packed], cut, [*cut, *small])]


@target(messages)
def frames(data: bytes) -> None:
    """A stream gives messages and noise, and ends with the first line that is neither."""
    for reader in (wire.Reader(), Reader()):
        with suppress(wire.WireError):
            for line in data.split(b"\n"):
                found = reader.feed(line)
                assert found is None or isinstance(found, dict)
                assert len(reader.noise) <= 20
                assert len(reader._open) <= wire.MAX_PARTIAL


@target(
    lambda: [
        b"* k 5\nhello0-3,7 d 2\nab* u 0\n1 d 1\nx",
        b"* r 3\nxyz* f 4\nnull0 e 0\n",
        b'* f 22\n{"size": 1, "sha256": 1}* e 0\n',
    ]
)
def relayed(data: bytes) -> None:
    """Whatever a stream holds, a relay ends by itself, and has handed on no more than came."""
    sink, out = os.pipe(), os.open(os.devnull, os.O_WRONLY)
    got = bytearray()
    taker = threading.Thread(target=lambda: got.extend(iter_all(sink[0])))
    taker.start()
    try:
        with mock.patch("os.mkdir", side_effect=PermissionError(13, "not in a test")):
            relay.Relay(io.BytesIO(data), sink[1], 1, out).run()
    finally:
        os.close(out)
        taker.join()
        os.close(sink[0])
    assert len(got) <= len(data) * (1 + data.count(b" u "))


def iter_all(fd: int) -> bytes:
    parts = []
    while data := os.read(fd, 1 << 16):
        parts.append(data)
    return b"".join(parts)


@contextmanager
def limited() -> Iterator[None]:
    """Little more memory than there is now, for as long as this lasts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + (256 << 20), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def dumps() -> list[bytes]:
    job = flight.stalled()
    dump = job.dump(0)
    return [flight.as_json(dump), pickle.dumps(dump, 2), pickle.dumps(dump, 4)]


@target(dumps)
def recorder(data: bytes) -> None:
    """A dump is a trace, or refused with a reason; nothing of it is ever run.

    With the limit on memory that processes have which read dumps: a few bytes can ask for more.
    """
    with suppress(ForeignError, RefusedError, TruncatedError, ValueError, MemoryError), limited():
        found = decode(data)
        columns = reduce(found)
        assert columns.length <= MAX_ENTRIES
        trace = trace_of(columns, 0, "file")
        assert len(trace.raw_seq) // 8 == trace.length
        _ = [trace.calls[number] for number in trace.call], list(trace.seq)
        judged(trace)


def judged(trace: Trace) -> None:
    """Judge a trace with those of two sound ranks; what is shown of that is harmless."""
    picture = examine([trace, *others()])
    expect_harmless(flight_text(picture.diagnosis, 100), lines=True)
    for line in group_lines(picture.world, picture.waits):
        expect_harmless(line.label)
        number_lines(picture.world, picture.waits, line.index) if line.index < 4 else ()


@functools.cache
def others() -> list[Trace]:
    """The traces of two more ranks of the same job."""
    job = flight.stalled()
    return [trace_of(reduce(job.dump(rank)), rank, "file") for rank in (1, 4)]


@target(lambda: numerics_files())
def numerics_on_the_node(data: bytes) -> None:
    """Lines of a rank are read within bounds, or the file is no such file."""
    with suppress(OSError, ValueError):
        told = numerics._told(io.BytesIO(data))
        wire.encode(told)


def numerics_files() -> list[bytes]:
    frame = {"batch": 3, "module": "net.0", "kind": "forward", "index": 1, "at": 1.5}
    first = {"type": "first", "batch": 3, "at": 5.0, "module": "net.0", "direction": "forward"}
    lines: list[dict[str, Any]] = [
        {"schema": "hangtop.numerics/1", "type": "header", "rank": 1, "node": "n1", "pid": 7},
        first,
        {"type": "seen", "batch": 9, "at": 7.5},
        {"type": "frame", **frame},
        {"type": "note", "text": "the file is full"},
    ]
    return [b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)]


HTTP = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x\r\n{}\r\n1\r\nx\r\n0\r\n\r\n",
    b"HTTP/1.1 404 Not Found\r\n\r\n",
)
STORE = b"\0" + (24).to_bytes(8, "little") + b"http://node-1.x:25999/\r\n"
RAS = b'OK\nOK\n{"nccl_version": "2.28.3", "communicators": []}'


@target(lambda: [*HTTP, STORE, RAS])
def servers_in_ranks(data: bytes) -> None:
    """Whatever listens where a rank was believed to: an answer within bounds, or a reason."""
    asks = (
        lambda: workerserver.post(("127.0.0.1", 1), "/handler/x", 2.0),
        lambda: torchstore.debug_port("127.0.0.1", 1, 0, 2.0),
        lambda: ras.ask(ras.Listener(7, "127.0.0.1:1", "2.28.3", (2, 28, 3)), 2.0),
    )
    for ask in asks:
        here, there = socket.socketpair()
        there.sendall(data[: 1 << 16])
        there.shutdown(socket.SHUT_WR)
        with (
            there,
            here,
            mock.patch("socket.create_connection", return_value=here),
            mock.patch.object(workerserver, "_connect", return_value=here),
            suppress(OSError, ValueError, Refused),
        ):
            ask()


@target(lambda: [b'{"end": "all_reduce", "took": 0.1}\n{"hello": {"torch": "2.13"}}\nWelcome\n'])
def said_by_torch(data: bytes) -> None:
    """Lines on the output of a process with torch, whoever wrote them: sent on, or left out."""
    sent: list[bytes] = []
    request = mock.Mock(give=lambda message: sent.extend(wire.encode(message)))
    for line in data.split(b"\n"):
        nettest_ranks._say(request, line)
    assert len(sent) <= data.count(b"\n") + 1


CALLED = b"n" * nettest_ports.NONCE
CALLED += nettest_ports.mac(b"token", b"caller", CALLED) + nettest_ports.LOAD[:3000]


@target(lambda: [CALLED, b"GET / HTTP/1.1\r\n\r\n" * 4])
def strangers(data: bytes) -> None:
    """Whoever calls where a network is tested: let in by the token, else they get no answer."""
    door = nettest_ports._Door.__new__(nettest_ports._Door)
    door.strangers, door._token, door._inside = 0, b"token", threading.Semaphore(0)
    here, there = socket.socketpair()
    there.sendall(data[: 1 << 16])
    there.shutdown(socket.SHUT_WR)
    door._serve(here)
    answer = b""
    with there, suppress(ConnectionResetError):
        answer = there.recv(1 << 10)
    assert not answer or data.startswith(CALLED[: nettest_ports.NONCE + nettest_ports.MAC])


@target(lambda: [b"4: ACTIVE\n", b"400 Gb/sec (4X NDR)\n", b"1000\n", b"InfiniBand\n"])
def sysfs_of_ports(data: bytes) -> None:
    """Any text in any file of a port of a network is a field of it, or none."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        root = Path(folder)
        sysfs.rdma_port(root, "mlx5_0")
        sysfs.interface(root, "eth0")
        for path in [path for path in root.rglob("*") if path.is_file()]:
            path.write_bytes(data[:4096])
        wire.encode(nics.read(folder))
