"""What a core of a live process would cost, and when none is taken."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from hangtop_probe.cores import cores
from hangtop_probe.node import corepattern, permission
from hangtop_probe.wire.requests import Message, Refused, Request
from hangtop_probe.wire.tools import Tools

if TYPE_CHECKING:
    from pathlib import Path

SMAPS = b"""\
55d0-55d1 r--p 00000000 08:01 1 /usr/bin/python3.11
Size:                100 kB
Anonymous:             0 kB
VmFlags: rd mr mw me
55d1-55d2 r-xp 00001000 08:01 1 /usr/bin/python3.11
Size:               1000 kB
Anonymous:             0 kB
VmFlags: rd ex
55d2-55d3 rw-p 00002000 08:01 1 /usr/bin/python3.11
Size:                 10 kB
Anonymous:             8 kB
VmFlags: rd wr
7f00-7f01 rw-p 00000000 00:00 0
Size:               2000 kB
Anonymous:          1500 kB
VmFlags: rd wr
7f01-7f02 ---p 00000000 00:00 0
Size:               4000 kB
Anonymous:             0 kB
VmFlags: mr
7f02-7f03 rw-p 00000000 00:00 0
Size:               9000 kB
Anonymous:          9000 kB
VmFlags: rd wr dd
7f03-7f04 rw-s 00000000 00:05 9 /dev/nvidia0
Size:               9000 kB
Anonymous:             0 kB
VmFlags: rd wr io
"""


def test_size_is_that_of_memory_that_gdb_writes() -> None:
    assert cores.estimate(SMAPS) == (100 + 10 + 2000 + 4000) * 1024


def ask(**message: Any) -> Message:
    request = Request({"id": 1, "op": "core", **message}, lambda *_: None)
    return cores.handle(request, Tools(), permission.rights())


@pytest.mark.skipif(not shutil.which("gdb"), reason="gdb is not installed")
def test_costs_are_told_and_nothing_is_touched(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "print('ready', flush=True); input()"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            found = ask(pid=process.pid, dir=str(tmp_path))
            assert 1 << 20 < found["size"] < 1 << 30
            assert found["dir"] == str(tmp_path)
            assert found["seconds"] > 0
            assert not list(tmp_path.iterdir())
            for wrong, why in (("relative", "absolute"), (f"{tmp_path}/none", "no directory")):
                with pytest.raises(Refused, match=why):
                    ask(pid=process.pid, dir=wrong)
        finally:
            process.kill()
    with pytest.raises(Refused, match="gone"):
        ask(pid=process.pid)
    with pytest.raises(Refused, match="pid"):
        ask()


def test_pattern_of_this_machine() -> None:
    fact = corepattern.fact()
    assert fact["ok"] is os.path.exists(corepattern.PATTERN)
