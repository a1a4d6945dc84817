"""A program that does not end costs hangtop no more than what it may take."""

from __future__ import annotations

import os
import subprocess
import time

import pytest

from hangtop_core.attach import bounded


def test_one_that_does_not_even_end_when_killed_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a program in the state D, for which no signal counts as long as its disk is silent
    left: list[subprocess.Popen[bytes]] = []
    kill = subprocess.Popen.kill

    def in_vain(process: subprocess.Popen[bytes]) -> None:
        left.append(process)

    monkeypatch.setattr(subprocess.Popen, "kill", in_vain)
    began = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        bounded.run(["sleep", "20"], 0.2, 1000, os.environ)
    assert time.monotonic() - began < 10
    kill(left[0])
    left[0].wait()
