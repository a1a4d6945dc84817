"""gdb calls into a process that runs Python, and whatever happens meanwhile does not end that."""

from __future__ import annotations

import json
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from hangtop_probe.proc import procfs
from hangtop_probe.recorder import gdbcalls, inject
from hangtop_probe.wire.tools import Tools
from support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Another thread holds the GIL for three seconds, so that gdb's call waits for it.
RANK = """
import ctypes, os, signal, sys, threading, types
torch = types.ModuleType("torch._C._distributed_c10d")
torch._dump_fr_trace_json = lambda *a: '{"entries": []}'
sys.modules[torch.__name__] = torch
for number in (signal.SIGUSR1, signal.SIGINT):
    signal.signal(number, lambda *a: print("handled", flush=True))
held = threading.Lock()
held.acquire()
def hold():
    os.read(0, 1)
    print("held", flush=True)
    ctypes.PyDLL(None).sleep(3)
    held.release()
threading.Thread(target=hold).start()
print("ready", flush=True)
held.acquire()
print("done", flush=True)
os.read(0, 1)
"""

SETS_BACK = """#!/bin/sh
exec %s "$@" -ex 'set $orig_rax = -1' -ex detach
"""
"""As gdb 13 where there is AMX: an interrupted system call is not restarted, and returns 514."""

pytestmark = pytest.mark.skipif(shutil.which("gdb") is None, reason="gdb is not installed")


@pytest.fixture
def rank() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", RANK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def tracer(pid: int) -> int:
    return procfs.value_of(procfs.read(f"/proc/{pid}/status") or b"", b"TracerPid") or 0


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGINT])
def test_a_signal_does_not_break_the_call_off(
    rank: subprocess.Popen[str], tmp_path: Path, number: int
) -> None:
    assert rank.stdin is not None
    assert rank.stdout is not None
    made = tmp_path / "made"
    code = inject._CODE.format(names=inject._OTHER, path=str(made))
    ended: list[str | None] = []
    gdb = threading.Thread(target=lambda: ended.append(inject._gdb("gdb", rank.pid, code)))
    rank.stdin.write("x")
    rank.stdin.flush()
    assert rank.stdout.readline() == "held\n"
    gdb.start()
    assert wait_until(lambda: tracer(rank.pid) != 0)
    time.sleep(1)  # until it calls
    rank.send_signal(number)
    gdb.join()
    assert ended == [""]
    said, _ = rank.communicate(timeout=10)
    assert (rank.returncode, sorted(said.split())) == (0, ["done", "handled"])
    assert json.loads(made.read_text()) == {"entries": []}


def test_this_gdb_calls_into_a_process_of_ours_and_that_goes_on() -> None:
    tools = Tools()
    gdb = shutil.which("gdb")
    assert gdb is not None
    assert gdbcalls.attempt(gdb, tools, threading.Event()) is None
    assert tools.pids() == set()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="sets a register of x86-64")
def test_a_gdb_after_which_a_system_call_is_not_restarted_is_found_harmful(tmp_path: Path) -> None:
    gdb = tmp_path / "gdb"
    gdb.write_text(SETS_BACK % shutil.which("gdb"))
    gdb.chmod(0o700)
    told = gdbcalls.attempt(str(gdb), Tools(), threading.Event())
    assert told is not None
    assert told.message["code"] == "harmful"
    assert told.message["args"]["what"] == "died of OSError: [Errno 514] Unknown error 514"
