"""The cache of a user on a node: what is counted, what is removed, and what never is."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import TYPE_CHECKING

import pytest

from hangtop_probe.wire import cache, rooms

if TYPE_CHECKING:
    from pathlib import Path

KEY = "0123456789abcdef" * 4


@pytest.fixture(autouse=True)
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What /tmp is on a node."""
    path = tmp_path / "tmp"
    path.mkdir()
    monkeypatch.setattr(rooms, "ROOM", f"{path}/hangtop-")
    return path


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("HANGTOP_BOOT", raising=False)
    path = tmp_path / "hangtop"
    path.mkdir(0o700)
    return path


def put(path: Path, *names: str) -> Path:
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("x = 1\n")
    return path


def test_what_is_hangtop_s_goes_with_its_directory(base: Path) -> None:
    put(base / KEY, "hangtop_probe/wire/boot.py", "hangtop_probe/__pycache__/boot.cpython-311.pyc")
    put(base / KEY / "hangtop_probe/proc", "table.py", "__pycache__/table.cpython-311.pyc")
    (base / KEY / "hangtop_probe/gpu/__pycache__").mkdir(parents=True)  # killed before its first
    put(base / KEY[::-1], "py-spy")
    put(base / ".new-ab_1", "wire.py")
    (base / ("f" * 64)).mkdir()
    put(base, "copied.txt")
    size = cache.facts()["bytes"]
    said = cache.clean()
    assert said == {
        "path": str(base),
        "removed": 5,
        "bytes": size,
        "left": [],
        "why": None,
        "rooms": 0,
    }
    assert size >= 4 * 6
    assert not base.exists()
    assert cache.clean()["removed"] == 0


def test_what_a_boot_left_that_was_killed_goes(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def left(name: str) -> None:
        put(base / name, ".new-ab_1/wire.py", ".old-ab_2/__pycache__/wire.cpython-311.pyc")
        put(base / name, ".new-ab_1/proc/table.py")
        (base / name / ".new-ab_3").mkdir()  # killed before its first file

    left(KEY)
    said = cache.clean()
    assert (said["removed"], said["left"]) == (1, [])
    left(KEY)
    monkeypatch.setenv("HANGTOP_BOOT", json.dumps({"base": str(base), "own": []}))
    keeper = cache.Keeper(threading.Event())
    keeper.tend(time.time() + 8 * 86400)
    assert keeper.removed == 1
    assert not (base / KEY).exists()


@pytest.mark.parametrize(
    "foreign",
    [
        "notes.txt",
        f"{KEY}/notes.txt",
        f"{KEY}/hangtop_probe/data.bin",
        f"{KEY}/hangtop_probe/proc/data.bin",
        f"{KEY}/hangtop_probe/proc/sub/x.py",
        f"{KEY}/sub/x.py",
        f"{KEY}/.new-ab_1/notes.txt",
        f"{KEY}/.new-ab_1/.new-ab_2/x.py",
        "abc/x.py",
    ],
)
def test_what_is_not_stays_and_is_named(base: Path, foreign: str) -> None:
    put(base, foreign)
    said = cache.clean()
    assert (said["removed"], said["left"]) == (0, [str(base / foreign.partition("/")[0])])
    assert said["why"]
    assert (base / foreign).exists()


def test_no_link_is_followed(base: Path, tmp_path: Path) -> None:
    outside = put(tmp_path / "outside", "x.py", "hangtop_probe/y.py")
    (base / KEY).symlink_to(outside)
    put(base / KEY[::-1], "z.py")
    (base / KEY[::-1] / "hangtop_probe").symlink_to(outside)
    assert cache.clean()["removed"] == 0
    assert sorted(path.name for path in outside.rglob("*.py")) == ["x.py", "y.py"]


def test_the_file_of_the_terminal_app_is_only_removed_as_a_file(base: Path) -> None:
    put(base / "copied.txt", "x.py")
    assert cache.clean()["removed"] == 0
    assert (base / "copied.txt/x.py").exists()


def test_a_base_that_is_a_link_or_another_user_s_is_left_alone(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(base / KEY, "x.py")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert "belongs to user id" in str(cache.clean()["why"])
    monkeypatch.undo()
    other = tmp_path / "other"
    other.mkdir()
    (other / "hangtop").symlink_to(base)
    monkeypatch.setenv("XDG_CACHE_HOME", str(other))
    assert "is no directory" in str(cache.clean()["why"])
    assert (base / KEY / "x.py").exists()


def test_old_versions_go_and_what_is_in_use_stays_young(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, young, own = ("a" * 64, "b" * 64, "c" * 64)
    now = time.time()
    for name, age in ((old, 8), (young, 6), (own, 9)):
        put(base / name, "x.py")
        os.utime(base / name, (now - age * 86400,) * 2)
    for name in ("notes.txt", "copied.txt"):
        (base / name).touch()
        os.utime(base / name, (0, 0))
    keeper = cache.Keeper(threading.Event())
    keeper.tend(now)
    assert (base / old).exists(), "a probe that was not booted has no business here"
    monkeypatch.setenv("HANGTOP_BOOT", json.dumps({"base": str(base), "own": [own]}))
    keeper = cache.Keeper(threading.Event())
    keeper.tend(now)
    assert sorted(path.name for path in base.iterdir()) == [young, own, "copied.txt", "notes.txt"]
    assert keeper.removed == 1
    assert (base / own).stat().st_mtime > now - 60


def test_rooms_of_killed_steps_go_once_they_are_old(
    base: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def room(name: str, *files: str, age: float = 0.0) -> Path:
        path = shared / name
        path.mkdir()
        put(path, *files)
        os.utime(path, (time.time() - age,) * 2)
        return path

    old, empty = (room(f"hangtop-{letter * 32}", age=cache.OLD_ROOM + 9) for letter in "ab")
    (old / rooms.FILE).touch()
    os.utime(old, (0, 0))
    stay = [
        room(f"hangtop-{'c' * 32}", rooms.FILE),
        room(f"hangtop-{'d' * 32}", rooms.FILE, "notes", age=9999),
        room("hangtop-notes", rooms.FILE, age=9999),
        room("other", rooms.FILE, age=9999),
    ]
    link = shared / f"hangtop-{'e' * 32}"
    link.symlink_to(stay[0])
    os.utime(link, (0, 0), follow_symlinks=False)
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    assert cache.clean()["rooms"] == 0
    monkeypatch.setattr(os, "geteuid", lambda: mine)
    assert cache.clean()["rooms"] == 2
    assert not old.exists()
    assert not empty.exists()
    assert all(path.exists() for path in (*stay, link))
    assert [path for path in stay if not (path / rooms.FILE).exists()] == [stay[1]]


@pytest.mark.parametrize("told", ["", "null", "[1]", "{", '{"base": 7, "own": "x"}'])
def test_nonsense_about_the_boot_is_no_boot(
    base: Path, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    monkeypatch.setenv("HANGTOP_BOOT", told)
    keeper = cache.Keeper(threading.Event())
    keeper.tend(time.time())
    assert keeper.removed == 0


def test_without_a_home_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 3_999_999)  # nobody has this number
    assert cache.facts() == {"path": None, "why": "no home directory"}
    assert cache.clean()["why"] == "no home directory"
