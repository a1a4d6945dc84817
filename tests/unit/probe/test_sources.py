"""Lines of code, read for stacks of several processes at the same time."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from hangtop_probe import procfs, sources

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_lines_that_are_forgotten_meanwhile_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "train.py"
    file.write_text("".join(f"line_{number}\n" for number in range(1, 9)))
    monkeypatch.setattr(sources, "_CACHED_LINES", 1)
    mounts = procfs.mounts("self")
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            wanted = [number % 8 + 1 for number in range(4000)]
            me, path = os.getpid(), str(file)
            found = pool.map(lambda number: sources.line(me, path, number, mounts), wanted)
            told = {(at, line or "") for at, line in zip(wanted, found, strict=True)}
    finally:
        sys.setswitchinterval(before)
    assert {(at, line.split()[0]) for at, line in told} == {(n, f"line_{n}") for n in range(1, 9)}
