"""Real processes that wait in open(): the path is told, with the mount that it leads to."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from hangtop_probe.files import opening
from hangtop_probe.proc import procfs, syscalls
from support.processes import wait_until

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", ["pipe", "../{folder}/pipe", "{whole}/pipe"])
def test_a_path_that_is_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    path = name.format(folder=tmp_path.name, whole=tmp_path)
    with subprocess.Popen([sys.executable, "-c", f"open({path!r})"], cwd=tmp_path) as process:
        try:
            data = procfs.read_all(f"/proc/{process.pid}/mountinfo") or b""
            mounts = procfs.parse_mountinfo(data)

            def found() -> bool:
                row = opening.read(process.pid, mounts)
                return row is not None and row["target"] == str(tmp_path / "pipe")

            assert wait_until(found)
            row = opening.read(process.pid, mounts)
            assert row is not None
            assert row["fd"] == -1
            assert row["mount"] in {mount.point for mount in mounts}
            assert row["target"].startswith(row["mount"])
        finally:
            process.kill()


@pytest.mark.parametrize("waits", ["thread.join()", "import time; time.sleep(60)"])
def test_a_main_thread_that_waits_on_a_futex_may_wait_for_the_thread(
    tmp_path: Path, waits: str
) -> None:
    os.mkfifo(tmp_path / "pipe")
    code = "import threading; thread = threading.Thread(target=open, args=('pipe',)); "
    with subprocess.Popen(
        [sys.executable, "-c", f"{code}thread.start(); {waits}"], cwd=tmp_path
    ) as process:
        try:

            def found() -> bool:
                row = opening.read(process.pid, ())
                return row is not None and row["target"] == str(tmp_path / "pipe")

            joins = "join" in waits
            assert wait_until(found, 10.0 if joins else 2.0) == joins
        finally:
            process.kill()


def test_who_waits_for_no_path_has_none() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            assert opening.read(process.pid, ()) is None
            assert opening.read(1 << 22, ()) is None
        finally:
            process.kill()


def test_the_innermost_and_last_mount_counts() -> None:
    points = ("/", "/data", "/data/nfs", "/data/nfs", "/data/nf")
    mounts = [procfs.Mount(n, "0:1", point, "nfs4", f"s{n}:/") for n, point in enumerate(points)]
    found = procfs.mount_of("/data/nfs/x", mounts)
    assert found is not None
    assert found.source == "s3:/"


def test_an_argument_that_is_no_address_is_no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    line = b"%d %#x %#x 0x0 0x0 0x0 0x0 0x0 0x0" % (openat(), 0xFFFFFF9C, (1 << 64) - 1)
    monkeypatch.setattr(opening.procfs, "read", lambda path, limit=0: line)
    assert opening.read(os.getpid(), ()) is None


def openat() -> int:
    """Return its number on this machine."""
    return next(number for number in range(500) if syscalls.name(number) == "openat")
