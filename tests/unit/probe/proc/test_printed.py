"""Whose lines make a log grow: those of the main thread are told apart from those of others."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from hangtop_probe.proc import procfs
from hangtop_probe.proc.activity import Activity
from hangtop_probe.proc.runclock import RunClock
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


ELSEWHERE = """
import os, sys
while word := os.read(int(sys.argv[1]), 1):
    os.write(int(sys.argv[2]) if word == b"e" else 2, 20 * b"|")
"""


def meters(activity: Activity) -> dict[str, Any]:
    """Look at a process once more."""
    activity.threads()
    stat = procfs.parse_stat(procfs.read(f"/proc/{activity.pid}/stat") or b"")
    assert stat is not None
    return activity.meters(stat, RunClock())


def test_what_another_process_prints_to_one_open_file_is_not_told_of_this_one(
    tmp_path: Path,
) -> None:
    """All ranks of a torchrun have its standard output; this one wrote to another file before."""
    asked = os.pipe()
    with (tmp_path / "ranks.log").open("ab") as file, (tmp_path / "state").open("wb") as state:
        process = subprocess.Popen(
            [sys.executable, "-c", ELSEWHERE, str(asked[0]), str(state.fileno())],
            stdout=file,
            stderr=file,
            pass_fds=(asked[0], state.fileno()),
        )
        try:
            activity = Activity(process.pid)
            wrote = meters(activity)["write_bytes"]
            os.write(asked[1], b"e")
            assert wait_until(lambda: meters(activity)["write_bytes"] == wrote + 20)
            os.write(file.fileno(), 50 * b"-")  # as another rank does
            assert meters(activity)["main_printed_bytes"] == 0
            os.write(asked[1], b"l")
            assert wait_until(lambda: meters(activity)["main_printed_bytes"] == 20)
        finally:
            process.kill()
            process.wait()
            for fd in asked:
                os.close(fd)


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
            told = meters(activity)
            return told["printed_bytes"], told["main_printed_bytes"]

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


READS = """
import os, sys, threading
def drain(fd):
    while os.read(fd, 100): pass
threading.Thread(target=drain, args=(int(sys.argv[1]),), daemon=True).start()
drain(int(sys.argv[2]))
"""


def settled(activity: Activity) -> dict[str, Any]:
    """Look at a process until all that it was given is read."""
    seen: list[dict[str, Any]] = [{}]

    def rests() -> bool:
        seen.append(meters(activity))
        rows = activity.threads()
        waits = len(rows) == 2 and all((row.state, row.syscall) == ("S", "read") for row in rows)
        return waits and seen[-1]["read_bytes"] == seen[-2].get("read_bytes")

    assert wait_until(rests)
    return seen[-1]


def test_what_the_main_thread_reads_is_told_apart_from_what_others_read() -> None:
    thread, main = os.pipe(), os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", READS, str(thread[0]), str(main[0])], pass_fds=(thread[0], main[0])
    )
    try:
        activity = Activity(process.pid)
        os.write(main[1], b"x")
        before = settled(activity)
        os.write(thread[1], 30 * b"x")
        assert wait_until(lambda: meters(activity)["read_bytes"] == before["read_bytes"] + 30)
        assert meters(activity)["main_read_bytes"] == before["main_read_bytes"]
        os.write(main[1], b"x")
        assert wait_until(
            lambda: meters(activity)["main_read_bytes"] == before["main_read_bytes"] + 1
        )
    finally:
        process.kill()
        process.wait()
