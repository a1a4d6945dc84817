"""Children of the probe with its own modules, also where those are only in memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import hangtop_probe
from hangtop_probe.wire import cachedir, child
from hangtop_probe.wire.pieces import Memory

if TYPE_CHECKING:
    import pytest

CODE = "from hangtop_probe.recorder import recorderread; print(recorderread.__file__)"


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_modules_that_are_files() -> None:
    assert Path(hangtop_probe.__file__).parent in Path(run(child.python(CODE))).parents


def test_modules_that_are_in_memory_only(monkeypatch: pytest.MonkeyPatch) -> None:
    files = cachedir.read_tree(str(Path(hangtop_probe.__file__).parent))
    spec = hangtop_probe.__spec__
    assert spec is not None
    monkeypatch.setattr(spec, "loader", Memory("hangtop_probe", files))
    monkeypatch.setattr(child, "_kept", None)
    assert run(child.python(CODE)).startswith("/proc/")
    assert sys.modules["hangtop_probe"] is hangtop_probe
