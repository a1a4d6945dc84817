"""The environment that a process has now, read out of the memory of real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from hangtop_probe.proc import procfs
from hangtop_probe.table import liveenviron

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OVERWRITES = """
    import ctypes, os
    for name in list(os.environ):
        os.environ[name] = os.environ[name]  # the C library copies each, as setproctitle does
    fields = open("/proc/self/stat").read().rpartition(")")[2].split()
    begin, end = int(fields[47]), int(fields[48])
    ctypes.memset(begin, 0, end - begin)
"""
Start = "Callable[[str], int]"


@pytest.fixture
def start() -> Iterator[Callable[[str], int]]:
    """Start programs that print a line once they are as they are to be looked at."""
    programs: list[subprocess.Popen[bytes]] = []

    def run(program: str) -> int:
        code = textwrap.dedent(program) + "\nprint(flush=True)\ninput()\n"
        environment = {**os.environ, "WORLD_SIZE": "2", "RANK": "0"}
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        programs.append(process)
        assert process.stdout is not None
        assert process.stdout.readline()
        return process.pid

    yield run
    for process in programs:
        process.kill()
        process.communicate()


def everything(name: str) -> bool:
    return True


def test_variables_are_those_of_now(start: Start) -> None:
    pid = start("import os; os.environ['RANK'] = '7'; del os.environ['WORLD_SIZE']")
    assert (procfs.environ(pid) or {})["RANK"] == "0"
    variables = liveenviron.read(pid, everything) or {}
    assert variables["RANK"] == "7"
    assert "WORLD_SIZE" not in variables
    assert variables["PATH"] == os.environ["PATH"]


def test_a_title_over_the_environment_hides_nothing(start: Start) -> None:
    pid = start(OVERWRITES)
    assert procfs.environ(pid) == {}
    assert (liveenviron.read(pid, everything) or {})["RANK"] == "0"


def test_only_what_is_wanted_comes_back(start: Start) -> None:
    assert liveenviron.read(start(""), lambda name: name == "RANK") == {"RANK": "0"}


def test_a_huge_environment_is_cut(start: Start) -> None:
    pid = start("import os\nfor n in range(6000): os.environ[f'V{n:05}'] = 'x' * 100")
    variables = liveenviron.read(pid, everything) or {}
    assert 1000 < len(variables) <= 4096
    assert sum(map(len, variables.values())) < 200 << 10


def test_a_process_that_is_gone_has_none() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert liveenviron.read(process.pid, everything) is None
