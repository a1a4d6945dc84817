"""Lines of code, read for stacks of several processes at the same time."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from hangtop_probe.files import localpath
from hangtop_probe.proc import procfs
from hangtop_probe.stacks import sources

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


def test_links_are_followed_where_the_process_sees_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of another mount namespace has other links, which lead elsewhere."""
    theirs = tmp_path / "their"
    (theirs / "code").mkdir(parents=True)
    (theirs / "near").symlink_to("code")
    (theirs / "far").symlink_to("data")
    (theirs / "away").symlink_to("/code")
    real = os.readlink
    looked: list[str] = []

    def readlink(path: str) -> str:
        looked.append(path)
        return real(path.replace("/proc/7/root", str(theirs)))

    monkeypatch.setattr(localpath.procfs, "shares", lambda *_: False)
    monkeypatch.setattr(localpath, "_rights", lambda _: None)
    monkeypatch.setattr("os.readlink", readlink)
    mounts = [
        procfs.Mount(1, "8:1", "/", "ext4", "a"),
        procfs.Mount(2, "0:9", "/data", "nfs4", "b:/"),
    ]

    def local(path: str) -> str | None:
        return localpath.of(7, path, mounts)

    assert local("/near/train.py") == "/proc/7/root/near/train.py"
    assert local("/far/train.py") is None, "it leads to a network file system"
    assert local("/away/train.py") is None, "by /proc/7/root it would lead to a file of ours"
    assert all(path.startswith("/proc/7/root/") for path in looked)


def test_the_line_of_a_comprehension_around_the_innermost_function_is_told(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "def score(text):\n    return len(text)\n\nbest = max(score(t) for t in texts)\n"
    )
    os.utime(file, (0, 0))
    names = (("score", 2), ("<genexpr>", 4), ("main.<locals>.<listcomp>", 4), ("main", 4))
    rows: list[list[Any]] = [[name, str(file), "train.py", at, 0, None] for name, at in names]
    sources.add(os.getpid(), rows)
    each = "best = max(score(t) for t in texts)"
    assert [row[5] for row in rows] == ["return len(text)", each, each, None]
