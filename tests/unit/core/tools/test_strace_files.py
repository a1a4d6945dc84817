"""What is saved of a trace, and what happens where it cannot be."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from hangtop_core.tools.strace_files import Saved

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "hangtop" / "strace"


def test_every_thread_has_its_file(folder: Path) -> None:
    saved = Saved("n1", 7)
    saved.write(["12:00:00.1 read(3) = 0", "[pid     8] 12:00:00.2 write(4) = 1"])
    saved.close(keep=True)
    assert sorted(path.suffix for path in folder.iterdir()) == [".7", ".8"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())
    assert saved.failed is None


def test_a_full_disk_ends_the_saving_and_is_told(folder: Path) -> None:
    saved = Saved("n1", 7)
    saved.write(["12:00:00.1 read(3) = 0"])
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, saved._files[7].fileno())
    os.close(full)
    for number in range(3):
        saved.write([f"12:00:00.{number} write(1, 'x', 1) = 1"])
        assert saved.failed == "No space left on device"
    saved.close(keep=True)
    (file,) = folder.iterdir()
    assert file.read_text() == "12:00:00.1 read(3) = 0\n", "what fitted is there"
