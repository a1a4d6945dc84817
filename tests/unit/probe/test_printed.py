"""Whose lines make a log grow: those of the main thread are told apart from those of others."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from hangtop_probe import procfs
from hangtop_probe.activity import Activity
from hangtop_probe.runclock import RunClock
from support.processes import wait_until

if TYPE_CHECKING:
    from pathlib import Path

PRINTS = """
import os, sys, threading
def loop(fd):
    while os.read(fd, 1): sys.stderr.write("\\r" + 20 * "|")
threading.Thread(target=loop, args=(int(sys.argv[1]),), daemon=True).start()
loop(int(sys.argv[2]))
"""


@pytest.mark.parametrize("by_main", [True, False])
def test_who_writes(tmp_path: Path, by_main: bool) -> None:
    thread, main = os.pipe(), os.pipe()
    with (tmp_path / "rank.log").open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", PRINTS, str(thread[0]), str(main[0])],
            stdout=file,
            stderr=file,
            pass_fds=(thread[0], main[0]),
        )
    try:
        activity = Activity(process.pid)

        def look() -> tuple[int, int]:
            activity.threads()
            stat = procfs.parse_stat(procfs.read(f"/proc/{process.pid}/stat") or b"")
            assert stat is not None
            meters = activity.meters(stat, RunClock())
            return meters["printed_bytes"], meters["main_printed_bytes"]

        assert wait_until(lambda: len(procfs.numbers(f"/proc/{process.pid}/task/")) == 2)
        assert look() == (0, 0)
        os.write(main[1] if by_main else thread[1], b"xx")
        assert wait_until(lambda: look()[0] == 42)
        assert look() == (42, 42 if by_main else 0)
    finally:
        process.kill()
        process.wait()
        for fd in (*thread, *main):
            os.close(fd)
