"""What is saved of a trace, and what happens where it cannot be."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from hangtop_core.traces import Saved

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "hangtop" / "strace"


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A disk of 64 KiB."""
    if os.geteuid() != 0:
        pytest.skip("a disk that is full needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no tmpfs can be mounted here")
    monkeypatch.setenv("XDG_STATE_HOME", str(disk))
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_every_thread_has_its_file(folder: Path) -> None:
    saved = Saved("n1", 7)
    saved.write(["12:00:00.1 read(3) = 0", "[pid     8] 12:00:00.2 write(4) = 1"])
    saved.close(keep=True)
    assert sorted(path.suffix for path in folder.iterdir()) == [".7", ".8"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())
    assert saved.failed is None


def test_a_full_disk_ends_the_saving_and_is_told(small: Path) -> None:
    saved = Saved("n1", 7)
    for number in range(3000):
        saved.write([f"12:00:00.{number} write(1, {'x' * 60!r}, 60) = 60"])
    saved.close(keep=True)
    assert saved.failed == "No space left on device"
    (file,) = (small / "hangtop" / "strace").iterdir()
    assert 20_000 < file.stat().st_size <= 64 << 10, "what fitted is there"
