"""A program that does not end costs hangtop no more than what it may take."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from hangtop_core.attach.ways import subprocesses
from support.processes import is_alive, wait_until

if TYPE_CHECKING:
    from pathlib import Path


def test_one_that_does_not_even_end_when_killed_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a program in the state D, for which no signal counts as long as its disk is silent
    left: list[int] = []
    kill = os.killpg

    def in_vain(group: int, _: int) -> None:
        left.append(group)

    monkeypatch.setattr(os, "killpg", in_vain)
    began = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        subprocesses.run(["sleep", "20"], 0.2, 1000, os.environ)
    assert time.monotonic() - began < 10
    kill(left[0], signal.SIGKILL)


@pytest.mark.parametrize("ends", ["sleep 1000", "head -c 1001 /dev/zero; sleep 1000"])
def test_what_a_script_has_started_goes_with_it(tmp_path: Path, ends: str) -> None:
    # GIVEN a script around the program, as sites have them
    script = f"sleep 1000 & echo $! > {tmp_path}/pid; {ends}"
    wrong = subprocesses.TooMuchOutputError if "head" in ends else subprocess.TimeoutExpired
    with pytest.raises(wrong):
        subprocesses.run(["sh", "-c", script], 2.0, 1000, os.environ)
    assert wait_until(lambda: not is_alive(int((tmp_path / "pid").read_text())))
