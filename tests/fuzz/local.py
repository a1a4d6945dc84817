"""Decoders of what this machine says: ssh, our own processes, variables of a job, programs on a node."""

from __future__ import annotations

import errno
import io
import os
import struct
import tempfile
import threading
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any
from unittest import mock

import msgspec

from fuzz.node import UNIX, Printing, proc_files
from fuzz.target import expect_harmless, target, text_of
from hangtop_core.analysis.flight.picture import examine
from hangtop_core.attach.connect import apart
from hangtop_core.attach.ways import large_packets, reach, subprocesses
from hangtop_core.dumps import pool, wire
from hangtop_core.dumps.find import DumpFile
from hangtop_core.model.recorder.columns import trace_of
from hangtop_core.tools import prepare
from hangtop_hook import logs as hooklogs
from hangtop_hook import names, numericsfile, permit, processes, server, terminal
from hangtop_probe import check
from hangtop_probe.cores import cores
from hangtop_probe.files import opening
from hangtop_probe.gpu import ethtool, gpus
from hangtop_probe.nettest import nettest_ranks
from hangtop_probe.node import node
from hangtop_probe.output import logs
from hangtop_probe.proc import elf, procfs
from hangtop_probe.recorder import gdbcalls
from hangtop_probe.recorder.columns import reduce
from hangtop_probe.stacks import trial
from hangtop_probe.wire import pieces
from hangtop_probe.wire import wire as frames
from hangtop_probe.wire.tools import Done
from support import flight

if TYPE_CHECKING:
    import array

# On a node

STATS = struct.pack("=IIQI", 0x37, 0, 2, 2) + b"".join(
    name.ljust(32, b"\0") for name in (b"rx_prio3_pause", b"tx_global_pause")
)


@target(lambda: [STATS + struct.pack("=QQ", 7, 9), STATS.replace(b"rx_prio3", b"tx_storm")])
def driver_counters(data: bytes) -> None:
    """Whatever a driver answers to the ioctl of ethtool is counters, or none."""

    def ask(_: object, __: str, room: array.array[int]) -> None:
        (command,) = struct.unpack_from("=I", room)
        at = {0x37: 0, 0x1B: 20 - 12, 0x1D: 20 + 2 * 32 - 8}[command]
        part = data[at : at + len(room)]
        for place, byte in enumerate(part[8 if command != 0x37 else 0 :]):
            room[place + (8 if command != 0x37 else 0)] = byte

    with mock.patch.object(ethtool, "_ask", ask), suppress(OSError):
        found = ethtool.pauses("eth0")
        assert len(found) <= 3
        frames.encode({"found": found})


LOADER = (
    b"glibc-ld.so.cache1.1\3\0\0\0\0\0\0\0/lib/libnvidia-ml.so.1\0libc.so.6\0/usr/lib/libc.so.6\0"
)


@target(lambda: [LOADER, LOADER.replace(b"\0/lib/", b"/a b/")])
def loader_cache(data: bytes) -> None:
    """Where NVML lies by the cache of ld.so, in a few paths."""
    found = pieces.listed(data)
    assert len(found) <= 16
    assert all(len(path) <= 3 * (4096 + len(pieces.NVML) + 1) for path in found)
    frames.encode({"found": found})


def program_with_symbols() -> bytes:
    """The smallest program with dynamic symbols, of which one is `environ`."""
    names = b"\0__environ\0Py_BytesMain\0"
    symbols = bytes(24) + struct.pack("<IBBHQQ", 1, 17, 0, 1, 0x4010, 8)
    begin = 64 + 3 * 64
    sections = [bytes(64)]
    sections.append(struct.pack("<IIQQQQIIQQ", 0, 11, 0, 0, begin, len(symbols), 2, 1, 8, 24))
    at = begin + len(symbols)
    sections.append(struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, at, len(names), 0, 0, 1, 0))
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = struct.pack("<16sHHIQQQIHHHHHH", ident, 3, 62, 1, 0, 0, 64, 0, 64, 56, 0, 64, 3, 2)
    return header + b"".join(sections) + symbols + names


@target(lambda: [program_with_symbols(), program_with_symbols()[:200]])
def symbols_of_a_program(data: bytes) -> None:
    """Whether a file is an interpreter of Python, and where its `environ` is."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.write(data)
        file.flush()
        found = elf._read(file.name)
    assert found.environ is None or abs(found.environ) < 1 << 65
    if data == program_with_symbols():
        assert found == (0x4010, False, True)


SAID = (
    b"strace -- version 6.1\nCopyright\n",
    b"GNU gdb (Debian 13.1-3) 13.1\n",
    b"ptrace: Operation not permitted.\nNo symbol table is loaded.\n",
    b"69\tselect.c: No such file or directory.\n$1 = 0\n",
    b"3.11.7 2.13.0+cpu\n",
    b"0\n",
    b'{"node": {"driver": "550"}}\n{"gpu": 0, "fields": {"state": "bad", "error": "gone"}}\n',
)


@target(lambda: list(SAID))
def programs_of_a_node(data: bytes) -> None:
    """What gdb, strace, Pythons and the child that asks NVML print when they are tried."""
    cancel: Any = threading.Event()
    for code in (0, 1):
        tools: Any = Printing(data)
        tools.run = lambda *_, code=code: Done(code, data, data)
        with mock.patch("shutil.which", return_value="/bin/x"):
            told: list[Any] = [check.version(tools, "gdb", [], cancel)]
            told += nettest_ranks.with_torch(["python3"], tools, mock.Mock(cancelled=cancel))
        told += [trial._seize(tools, 1, cancel), gpus.Gpus(tools).once(cancel)]
        told += [cores._why(tools.run(), 60.0)]
        for broken in (None, gdbcalls.words(data)):
            refused = gdbcalls.judged(tools.run(), broken)
            told += [broken, refused and refused.message]
        assert len(gdbcalls.words(data)) <= gdbcalls.MAX_WORDS
        with mock.patch("hangtop_probe.wire.tools.Tools", return_value=tools):
            told += [node._asked_version("/bin/py-spy")]
        frames.encode({"told": told})


@target(lambda: [b"step 1\nstep 2\n" * 30, b"--token abc\r\n\xff" + b"x" * 5000])
def end_of_a_log(data: bytes) -> None:
    """A window of a log, and what came since: no byte twice, and none before the file."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        half = len(data) // 2
        file.write(data[:half])
        file.flush()
        first = logs.read(file.name, 1 << 12, {}, set(), False, None)
        assert first is not None
        assert (first.data or b"") == data[first.start : half]
        file.write(data[half:])
        file.flush()
        marks = {first.inode: (first.size, first.mark)}
        since = {first.inode: first.size}
        then = logs.read(file.name, 1 << 12, since, set(), False, None, marks)
        assert then is not None
        assert not then.cut
        assert (then.data or b"") == data[then.start :]


@target(lambda: [b"257 0xffffff9c 0x7f0000001000 0x0 0x7ffe 0x7f\0/data/../a b/x\0"])
def path_in_memory(data: bytes) -> None:
    """A path that a thread is blocked in opening, from its memory."""
    line, _, memory = data.partition(b"\0")
    with (
        mock.patch.object(procfs, "read", return_value=line),
        mock.patch.object(procfs, "numbers", return_value=[1, 2]),
        mock.patch.object(procfs, "link", return_value="/cwd"),
        mock.patch.object(
            opening, "open", side_effect=lambda *_, **__: Endless(memory), create=True
        ),
    ):
        found = opening.read(1, procfs.parse_mountinfo(memory))
        frames.encode({"found": found})


class Endless(io.BytesIO):
    """Memory whose every address holds the same."""

    def seek(self, at: int, whence: int = 0) -> int:
        if at >= 1 << 63:
            raise OverflowError("cannot fit 'int' into an offset-sized integer")
        return super().seek(at % 4096 % (len(self.getbuffer()) + 1), whence)


# In a job that was started by `hangtop run`

VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "TORCHELASTIC_RESTART_COUNT", "TORCH_FR_BUFFER_SIZE")


@target(
    lambda: [
        numericsfile.to_text(numericsfile.Settings(trace=((1, 2),), abort_after=3)).encode(),
        b"3\0007\0001\0002000",
        "²\0٣\0001\0x".encode(),
    ]
)
def variables_of_a_job(data: bytes) -> None:
    """Whatever a job's variables hold, ranks start: a number, settings, or none."""
    words = [os.fsdecode(word) for word in data.split(b"\0")]
    environ = {**dict(zip(VARIABLES, words, strict=False)), "WORLD_SIZE": "2"}
    with mock.patch.dict(os.environ, environ, clear=True):
        number = processes.rank_in_environment()
        assert number is None or 0 <= number < 10**9
        hooklogs._attempt()
        names.variables(names.version_of(words[0]), os.environ, "/run")
        assert processes.is_launcher(words) in (True, False)
    with suppress(ValueError):
        settings = numericsfile.from_environment({numericsfile.VARIABLE: words[0]})
        if settings is not None:
            settings.traces(3)


@target(lambda: [b"#!/usr/bin/env -S python3 -u\nimport x\n", b"#!/opt/a/bin/python3.11\n"])
def first_line_of_a_script(data: bytes) -> None:
    """The Python that a script names, if it does."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.write(data)
        file.flush()
        prepare._shebang(file.name)


@target(lambda: [*proc_files(), b"max\n", b"12\n", UNIX])
def proc_in_a_rank(data: bytes) -> None:
    """What the hook reads of /proc in a rank, and beside one: understood, or a reason."""

    def read(_: str, mode: str = "r", **__: object) -> io.IOBase:
        return io.BytesIO(data) if "b" in mode else io.StringIO(text_of(data))

    with ExitStack() as stack:
        for module in (permit, processes, server, terminal):
            stack.enter_context(mock.patch.object(module, "open", read, create=True))
        processes.command_line()
        server.room_for_threads()
        terminal.why_not(os.getpid(), 42)
        for ask in (permit.is_taken, terminal._ran):
            with suppress(ValueError, IndexError):  # no kernel says that; it costs a part at most
                ask(os.getpid())


# On the head

SETTINGS = b"""user alice
hostname 10.0.0.7
port 2222
proxyjump none
identityfile ~/.ssh/id_ed25519
"""


@target(lambda: [SETTINGS, SETTINGS.replace(b"none", b"gate"), b"port 99999\nhostname a\0b\n"])
def ssh_settings(data: bytes) -> None:
    """What `ssh -G` prints is a way to a node; what makes no sense there is left out."""
    done = subprocesses.Done(0, text_of(data), "")
    nobody = OSError(errno.EHOSTUNREACH, "No route to host")
    with (
        mock.patch.object(subprocesses, "run", return_value=done),
        mock.patch("socket.getaddrinfo", side_effect=_looked_up),
        mock.patch("socket.socket", side_effect=nobody),
    ):
        way = reach.way("n1", None, 1.0)
    assert 0 <= way.port < 65536
    expect_harmless(way.unresolved or "")


def _looked_up(host: str, port: int, **_: object) -> list[Any]:
    host.encode("idna")  # as the real one does first
    if "\0" in host:
        raise ValueError("embedded null character")
    return [(2, 1, 6, "", (host, port))]


@target(lambda: [bytes(range(104)) + bytes(128)])
def tcp_info(data: bytes) -> None:
    """The kernel's words about a connection, of which older ones have fewer."""
    with suppress(struct.error):
        large_packets._read(data)


def answers_of_readers() -> list[bytes]:
    """As `hangtop_core.dumps.reader` writes them, without their length."""
    encode = msgspec.msgpack.Encoder().encode
    trace = trace_of(reduce(flight.stalled().dump(0)), 0, "file")
    return [encode(wire.pack(trace)), encode(wire.Answer("truncated", "ends too early"))]


@target(answers_of_readers)
def reader_of_dumps(data: bytes) -> None:
    """Whatever a process says that has read a dump: a trace that can be judged, or a problem."""
    done = pool.Reading([], [])
    pool._take(done, DumpFile("/x", 0, len(data), 0.0, True), data, wire.Unpacker())
    assert len(done.traces) + len(done.problems) == 1
    if done.traces:
        examine(done.traces)
    receiver = pool._Reader.__new__(pool._Reader)
    receiver.buffer = bytearray()
    with _file_of(data) as fd, suppress(EOFError, OverflowError):
        receiver.fileno = lambda: fd  # type: ignore[method-assign]
        while receiver.take() is None:
            pass


def events() -> list[bytes]:
    """What the engine's own process says of three connections."""
    some = [(b"P", 1, b"77"), (b"L", 1, b"hello\nworld"), (b"E", 2, b"srun: error"),
            (b"X", 1, b'[0, null, "gone"]'), (b"X", 2, b'[null, 2, "no"]')]  # fmt: skip
    return [b"".join(apart._HEAD.pack(what, conn, len(d)) + d for what, conn, d in some)]


@target(events)
def engine_apart(data: bytes) -> None:
    """Events of the process that holds the connections; nonsense ends it, and closes them all."""
    told: list[Any] = []
    engine = apart.ApartEngine(told.append)
    engine._open = {1, 2, 3}
    house = apart._EngineProcess.__new__(apart._EngineProcess)
    house._came, house._ended = engine._came, engine._ended
    house._orders, engine._process = mock.Mock(), house
    with _file_of(data) as fd:
        house._child = mock.Mock(stdout=os.dup(fd))
        house._read()
    assert not engine._open
    assert sum(isinstance(one, apart.Closed) for one in told) == 3


class _file_of:  # used as a function
    """A descriptor that gives the bytes, and then its end."""

    def __init__(self, data: bytes) -> None:
        self._fd = os.memfd_create("fuzz")
        os.pwrite(self._fd, data, 0)

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
