"""What gdb prints, what it means together with Python frames, and what a stack says about why."""

from __future__ import annotations

import signal
import struct
import sys
from typing import TYPE_CHECKING

import pytest

from hangtop_core.cores import elf
from hangtop_core.cores import native as by_gdb
from hangtop_core.cores import python as by_pystack
from hangtop_core.cores.explain import explain
from hangtop_core.cores.native import parse
from hangtop_core.cores.python import PythonThread
from hangtop_core.cores.read import read, spawned
from hangtop_core.cores.threads import CoreThread, merge
from hangtop_core.model.frame import Frame
from hangtop_core.model.node.core_pattern import expected, understand
from hangtop_core.model.snapshot import Local
from hangtop_probe.wire.tools import Tools
from support.cores.image import STACK, core

if TYPE_CHECKING:
    from pathlib import Path

GDB = """\
[New LWP 8904]
Program terminated with signal SIGABRT, Aborted.
#0  __pthread_kill_implementation (threadid=<optimized out>) at ./nptl/pthread_kill.c:44

Thread 2 (Thread 0x7f37771296c0 (LWP 8904)):
warning: Section `.reg-xstate/8904' in core file too small.
#0  0x00007f3796326f36 in epoll_wait (epfd=..., events=..., timeout=...) at /b/epoll_wait.c:30
#1  0x00007f3787f7d62d in gloo::transport::tcp::Loop::run() () from /venv/torch/lib/libtorch_cpu.so
#2  0x00007f377f0d44a3 in ?? () from /lib/libstdc++.so.6

Thread 1 (LWP 8903):
#0  __strlen_evex () at ../sysdeps/strlen-evex.S:79
#1  0x00007f37964fd9c3 in _PyEval_EvalFrameDefault (tstate=..., frame=...) at Python/ceval.c:4769
#2  0x00007f37964fd9c4 in std::function<void ()>::operator()(int) const (this=...) at /a b/f.h:9
hangtop abort message: double free or corruption
"""


def test_what_gdb_prints_is_read() -> None:
    found = parse(GDB)
    assert list(found.threads) == [8904, 8903]
    first, second = found.threads[8904], found.threads[8903]
    assert [one.name for one in first] == ["epoll_wait", "gloo::transport::tcp::Loop::run()", "??"]
    assert (first[0].short, first[0].line, first[0].native) == ("epoll_wait.c", 30, True)
    assert first[1].short == "libtorch_cpu.so"
    assert second[1].name == "_PyEval_EvalFrameDefault"
    assert (second[2].short, second[2].line) == ("f.h", 9)
    assert found.message == "double free or corruption"


def native(*names: str) -> list[Frame]:
    return [Frame(name, "/lib/x.so", "x.so", 0, native=True) for name in names]


def python(*names: str, entries: tuple[bool, ...]) -> PythonThread:
    frames = tuple(Frame(name, "/t.py", "t.py", 1) for name in names)
    return PythonThread(1, None, True, frames, entries)


def unnamed(file: str) -> Frame:
    return Frame("??", file, file.rpartition("/")[2], 0, native=True)


LOOP = "_PyEval_EvalFrameDefault"


@pytest.mark.parametrize(
    ("frames", "thread", "names"),
    [
        # Two runs of the loop: an inner one for `a`, an outer one for `b` and `c`.
        (
            native("strlen", LOOP, "_PyEval_Vector", "thunk", LOOP, "PyEval_EvalCode", "main"),
            python("a", "b", "c", entries=(True, False, True)),
            ["strlen", "a", "thunk", "b", "c", "main"],
        ),
        # The counts differ: what is inside of Python, then Python.
        (
            native("strlen", "PyObject_Call", LOOP, "main"),
            python("a", "b", entries=(True, True)),
            ["strlen", "a", "b"],
        ),
        # No names in the interpreter: its file tells where Python begins, or that it has none.
        (
            [*native("strlen"), unnamed("/usr/bin/python3.14"), *native("main")],
            python("a", "b", entries=(False, True)),
            ["strlen", "a", "b"],
        ),
        (
            [unnamed("/usr/lib/libc.so.6"), unnamed("libpython3.12.so.1.0")],
            python("a", entries=(False,)),
            ["??", "a"],
        ),
        ([*native("ffi_call"), unnamed("")], python("a", entries=(False,)), ["ffi_call", "a"]),
        (native("poll", "main"), python("a", entries=(False,)), ["a"]),
        ([], python("a", entries=(True,)), ["a"]),
    ],
)
def test_python_frames_take_the_place_of_the_loop(
    frames: list[Frame], thread: PythonThread, names: list[str]
) -> None:
    assert [one.name for one in merge(frames, thread)] == names


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("watchdog", "abort std::terminate() c10d::ProcessGroupNCCL::ncclCommWatchdog()"),
        ("watchdog", "c10d::ProcessGroupNCCL::WorkNCCL::handleNCCLGuard()"),
        ("watchdog", "c10d::ProcessGroupNCCL::Watchdog::runLoop()"),
        ("heartbeat-monitor", "abort c10d::ProcessGroupNCCL::HeartbeatMonitor::runLoop()"),
        ("heartbeat-monitor", "c10d::ProcessGroupNCCL::heartbeatMonitor()"),
        ("torch-error", "std::terminate() c10::detail::torchCheckFail(char)"),
        ("out-of-memory", "std::terminate() __cxa_throw c10::alloc_cpu(unsigned)"),
        ("python-fatal-error", "abort fatal_error_exit Py_FatalError"),
        ("uncaught-exception", "abort std::terminate() main"),
        ("aborted", "abort main"),
    ],
)
def test_why_it_aborted(tmp_path: Path, code: str, names: str) -> None:
    path = tmp_path / "core"
    path.write_bytes(core(number=6, code=-6, detail=struct.pack("<iI", 4711, 0)))
    thread = CoreThread(4711, frames=tuple(native(*names.split())))
    assert [one.code for one in explain(elf.read(str(path)), (thread,))] == [code]


@pytest.mark.parametrize(
    ("code", "options"),
    [
        ("sent-by-process", {"number": 6, "code": 0, "detail": struct.pack("<iI", 77, 1000)}),
        ("stack-overflow", {"number": 11, "detail": struct.pack("<Q", STACK - 8)}),
        ("bad-access", {"number": 11, "detail": struct.pack("<Q", 0xDEAD_BEEF_0000)}),
        ("null-pointer", {"number": 11}),
        ("taken-live", {"number": 0}),
        ("shared-memory-full", {"number": 7, "code": 2, "detail": struct.pack("<Q", 0x9000)}),
        ("mapped-file", {"number": 7, "code": 2, "detail": struct.pack("<Q", 0xB000)}),
        ("bus-error", {"number": 7, "code": 2, "detail": struct.pack("<Q", 0xF000)}),
    ],
)
def test_what_the_signal_says(tmp_path: Path, code: str, options: dict[str, object]) -> None:
    path = tmp_path / "core"
    files = ((0x9000, 0xA000, 0, "/dev/shm/torch_9"), (0xB000, 0xC000, 0, "/data/set.bin"))
    path.write_bytes(core(files=files, **options))  # type: ignore[arg-type]
    assert [one.code for one in explain(elf.read(str(path)), ())] == [code]


@pytest.mark.parametrize(
    ("sender", "who"),
    [
        (77, "process 77 of user 1000"),
        (0, "a process of user 1000 outside of its PID namespace, as container runtimes are"),
    ],
)
def test_who_has_sent_a_signal(tmp_path: Path, sender: int, who: str) -> None:
    """Who is in another PID namespace, as container runtimes are, has no pid in that of a rank."""
    path = tmp_path / "core"
    path.write_bytes(core(number=6, code=0, detail=struct.pack("<iI", sender, 1000)))
    (one,) = explain(elf.read(str(path)), ())
    assert f"SIGABRT was sent by {who}: somebody ended it" in one.text


def test_the_rank_of_a_child_of_mp_spawn_is_in_its_stack() -> None:
    """As pystack gives it of torch 2.13; the environment of such a child has no RANK."""
    frames = (
        Frame("main", "/job.py", "job.py", 10),
        Frame("_wrap", "torch/multiprocessing/spawn.py", "spawn.py", 87),
    )
    values = ((Local("i", "7", True),), (Local("args", "(True)", True), Local("i", "1", True)))
    beside = CoreThread(2, frames=frames[:1], locals=values[:1])
    assert spawned((beside, CoreThread(1, frames=frames, locals=values))) == 1
    assert spawned((beside,)) is None


WHO = {"pid": 4711, "comm": "python3", "cwd": "/job", "node": "n1"}


@pytest.mark.parametrize(
    ("pattern", "uses_pid", "path", "match"),
    [
        ("core", False, "/job/core", "core"),
        ("core", True, "/job/core.4711", "core.4711"),
        ("core.%e.%p.%t", False, "/job/core.python3.4711.*", "core.python3.4711.1700000000"),
        ("/cores/%h/%s-%p", False, "/cores/n1/11-4711", "11-4711"),
        ("|/usr/lib/systemd/systemd-coredump %P %u", False, None, "core.python3.1000.x.4711.zst"),
        ("|/usr/share/apport/apport -p%p", False, None, "core._usr_bin_python3"),
        ("|/usr/libexec/abrt-hook-ccpp %s", False, None, "coredump"),
        ("cores/%h/core", True, "/job/cores/n1/core.4711", "core.4711"),
        ("|/opt/own-handler", False, None, None),
        ("", False, None, None),
    ],
)
def test_where_cores_go(pattern: str, uses_pid: bool, path: str | None, match: str | None) -> None:
    place = understand(pattern, uses_pid)
    assert expected(place, signal=signal.SIGSEGV, **WHO) == path  # type: ignore[arg-type]
    if match is not None:
        assert place.name is not None
        assert place.name.fullmatch(match)
    assert place.text


def test_gdb_is_asked_who_called_abort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pystack names the caller of what does not return by what lies behind it."""
    (tmp_path / "core").write_bytes(core(number=6, threads=1))
    thread = PythonThread(4711, None, False, (), (), native=tuple(native("abort", "??")))
    found = by_pystack.Python({4711: thread}, "pystack")
    monitor = native("abort", "c10d::ProcessGroupNCCL::heartbeatMonitor()")
    monkeypatch.setattr(by_pystack, "read", lambda *_, **__: found)
    monkeypatch.setattr(by_gdb, "read", lambda *_: by_gdb.Native({4711: tuple(monitor)}))
    tools = Tools()
    told = read(str(tmp_path / "core"), tools, sys.executable)
    assert [one.code for one in told.explanations] == ["heartbeat-monitor"]
    monkeypatch.setattr(by_gdb, "read", lambda *_: by_gdb.Native(problem="no gdb"))
    told = read(str(tmp_path / "core"), tools, sys.executable)
    assert [one.code for one in told.explanations] == ["aborted"]
    assert "no gdb" not in told.problems
    tools.close()


@pytest.mark.parametrize("hostile", ["comm", "cwd", "node", "pattern"])
def test_a_star_of_a_name_is_not_filled_in_by_a_shell(hostile: str) -> None:
    """A `*` stands for what is not known: of a name it would be taken for that, too."""
    place = understand("/a*/core" if hostile == "pattern" else "%e.%h.%p", uses_pid=False)
    told = {**WHO, **({} if hostile == "pattern" else {hostile: "/a*"})}
    assert expected(place, signal=None, **told) is None  # type: ignore[arg-type]
    plain = understand("%e.%h.%p", uses_pid=False)
    assert expected(plain, signal=None, **WHO) is not None  # type: ignore[arg-type]
