"""gdb calls into a process that runs Python, and whatever happens meanwhile does not end that."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from hangtop_probe import inject, procfs
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
    ended: list[bool] = []
    gdb = threading.Thread(target=lambda: ended.append(inject._gdb(rank.pid, code)))
    rank.stdin.write("x")
    rank.stdin.flush()
    assert rank.stdout.readline() == "held\n"
    gdb.start()
    assert wait_until(lambda: tracer(rank.pid) != 0)
    time.sleep(1)  # until it calls
    rank.send_signal(number)
    gdb.join()
    assert ended == [True]
    said, _ = rank.communicate(timeout=10)
    assert (rank.returncode, sorted(said.split())) == (0, ["done", "handled"])
    assert json.loads(made.read_text()) == {"entries": []}
