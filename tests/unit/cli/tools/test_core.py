"""`hangtop core` without a crash: what is named, what is found, and what cannot be read."""

from __future__ import annotations

import json
import os
import struct
import sys
from typing import TYPE_CHECKING

import pytest

from hangtop.cli.main import main
from hangtop.cli.tools import core as command
from hangtop.cli.tools import coretake
from hangtop_core.cores import find
from hangtop_core.errors import NoCoreError, UsageError
from support.cores.image import core
from support.documents import misfits

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = core()[:16] + struct.pack("<H", 2) + core()[18:]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in which cores are looked for, and nowhere else."""
    monkeypatch.setattr(find, "own_directories", lambda: [str(tmp_path)])
    return tmp_path


def test_cores_are_told_from_the_executable(tmp_path: Path) -> None:
    one, program = tmp_path / "core.1", tmp_path / "python3"
    one.write_bytes(core())
    program.write_bytes(PROGRAM)
    assert command.sort_out([str(program), str(one)]) == ([str(one)], str(program))
    assert command.sort_out([str(tmp_path)]).cores == [str(one)]
    with pytest.raises(UsageError, match="no such file"):
        command.sort_out([str(tmp_path / "none")])
    with pytest.raises(UsageError, match="second executable"):
        command.sort_out([str(program), str(program)])
    (tmp_path / "empty").mkdir()
    with pytest.raises(NoCoreError, match="no core in"):
        command.sort_out([str(tmp_path / "empty")])


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("core.%p", "ulimit -c unlimited"),
        ("|/usr/lib/systemd/systemd-coredump %P", "coredumpctl dump PID"),
        ("|/opt/own", "own"),
        ("", "nowhere"),
    ],
)
def test_where_none_is_found_it_says_where_they_go(
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    pattern: str,
    said: str,
) -> None:
    monkeypatch.setattr(find, "read_pattern", lambda: pattern)
    # The machine's own handler may have kept some.
    monkeypatch.setattr(find, "present", lambda place, directories: [])
    assert main(["core"]) == 12
    err = capsys.readouterr().err
    assert said in err
    assert ("ulimit" in err) == (pattern == "core.%p"), "no limit decides where there is a handler"


def test_the_newest_core_is_taken(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(find, "read_pattern", lambda: "core.%p")
    for number, at in ((1, 1000), (2, 3000), (3, 2000)):
        path = here / f"core.{number}"
        path.write_bytes(core(pid=number, environment={"RANK": str(number), "WORLD_SIZE": "4"}))
        os.utime(path, (at, at))
    (here / "core.txt").write_text("no core")
    assert main(["core", "--json"]) == 13
    said = capsys.readouterr()
    data = json.loads(said.out)
    assert data["schema"] == "hangtop.core/1"
    assert misfits(data) == []
    (one,) = data["cores"]
    assert (one["pid"], one["rank"], one["world_size"]) == (2, 2, 4)
    assert one["problems"], "its executable is nowhere"
    assert "the newest of 3 cores" in said.err


@pytest.mark.parametrize(
    ("pattern", "uses_pid", "lies"),
    [
        ("TMP/%h/%e/core.%p", False, "n1/python3/core.9"),
        ("TMP/all/core", True, "all/core.9"),
        ("cores/core.%p", False, "cores/core.9"),
        ("", True, ".9"),
    ],
)
def test_cores_are_found_in_directories_that_the_pattern_makes_up(
    here: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, uses_pid: bool, lies: str
) -> None:
    monkeypatch.setattr(find, "read_pattern", lambda: pattern.replace("TMP", str(here)))
    monkeypatch.setattr(find, "uses_pid", lambda: uses_pid)
    path = here / lies
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(core())
    (here / "other").mkdir()
    (here / "other" / path.name).write_bytes(core())
    assert command.newest().cores == [str(path)]


def test_a_core_of_another_kind_of_machine_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A double: registers and byte order are those of x86-64."""
    other = bytearray(core(environment={"RANK": "2"}))
    struct.pack_into("<H", other, 18, 22)
    path = tmp_path / "core"
    path.write_bytes(other)
    assert main(["core", str(path), sys.executable]) == 13
    said = " ".join(capsys.readouterr().out.split())
    assert "a machine of another kind (s390x, this one is" in said
    assert "rank 2" in said


def test_what_is_no_core_keeps_nobody_from_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = tmp_path / "core.1", tmp_path / "core.2"
    good.write_bytes(core(environment={"RANK": "1"}, arguments=("python3", "\x1b[31mtrain.py")))
    bad.write_text("hello")
    assert main(["core", str(good), str(bad)]) == 13
    said = capsys.readouterr()
    assert "is no core file" in said.err
    assert "rank 1" in said.out
    assert "\x1b" not in said.out
    assert "SIGSEGV" in said.out
    assert "no stack" in said.out


@pytest.mark.parametrize(
    "words",
    [["--rank", "1"], ["--yes"], ["--take", "x"], ["--take", "--readonly"]],
)
def test_wrong_usage(words: list[str]) -> None:
    assert main(["core", *words]) == 2


@pytest.mark.parametrize("option", ["--redact-hosts", "--redact-paths"])
def test_where_a_core_lies_cannot_have_another_name(
    option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(coretake, "_run", lambda arguments: 0)
    assert main(["core", "--take", "--rank", "3", "--yes"]) == 0
    assert main(["core", "--take", "--rank", "3", "--yes", option]) == 2
    assert "by its real name" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["core", "--help"])
    _, _, told = capsys.readouterr().out.partition("  --take ")
    assert option in told.partition("  --rank ")[0]
