"""Files that cannot be written are told before anything is observed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hangtop import __main__
from hangtop.cli import main as cli
from hangtop.cli.output.writing import check_file, check_folder, check_new
from hangtop_core.errors import UsageError
from hangtop_core.session.session import Session

CRAMPED = "hangtop: there is too little memory here (ulimit -v)\n"

COMMANDS = ["capture", "dump", "flight", "watch --once", "dump -x n1 -w n[1-2]"]
FILES = ["", "{}/new/", "{}/none/x", "/proc/x", "{}", "{}/file/x", f"{{}}/{'x' * 300}"]


@pytest.fixture
def observed(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Sessions that were begun."""
    begun: list[object] = []

    def begin(self: Session, *arguments: object, **named: object) -> None:
        begun.append(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(Session, "__init__", begin)
    return begun


UNWRITABLE = [
    (command, file)
    for command in COMMANDS
    for file in FILES
    if not command.startswith("watch")
    or file not in ("", "{}", "{}/new/", "{}/none/x")  # it makes its folder
]


@pytest.mark.parametrize(("command", "file"), UNWRITABLE)
def test_every_command_says_so_at_once(
    command: str, file: str, tmp_path: Path, observed: list[object],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "file").touch()
    assert cli.main([*command.split(), "--output", file.format(tmp_path)]) == 2
    assert "--output" in capsys.readouterr().err
    assert not observed


@pytest.mark.parametrize("command", COMMANDS)
def test_what_can_be_written_is_not_made_before_there_is_something_to_write(
    command: str, tmp_path: Path, observed: list[object]
) -> None:
    cli.main([*command.split(), "--output", str(tmp_path / "out")])
    assert observed
    assert {one.name for one in tmp_path.iterdir()} <= ({"out"} if "watch" in command else set())


def test_one_file_for_every_node_needs_its_folder(
    tmp_path: Path, observed: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["dump", "-o", str(tmp_path / "none/%N.txt")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert not observed


def test_a_capture_without_a_name_needs_a_folder_that_can_be_written(
    monkeypatch: pytest.MonkeyPatch, observed: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir("/proc")
    assert cli.main(["capture"]) == 2
    assert "without --output: cannot write to ." in capsys.readouterr().err
    assert not observed


def test_what_is_there_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("before")
    check_file(str(path))
    with pytest.raises(UsageError, match="is there already"):
        check_new(str(path))
    assert path.read_text() == "before"
    dangling = tmp_path / "link"
    dangling.symlink_to(tmp_path / "none")
    with pytest.raises(UsageError, match="is there already"):
        check_new(str(dangling))


def test_a_pipe_is_not_opened_before_its_time(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    check_file(str(tmp_path / "pipe"))
    check_file("/dev/null")


def test_a_full_disk_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    full = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115
    monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: full)
    with pytest.raises(UsageError, match="No space left on device"):
        check_folder(tmp_path)


def test_what_fails_for_want_of_memory_is_told_as_that(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> int:
        raise MemoryError

    monkeypatch.setattr(cli, "perform", fail)
    assert cli.main(["diagnose"]) == 1
    assert capsys.readouterr().err == CRAMPED


@pytest.mark.parametrize("command", ["diagnose", "logs", "--version"])
@pytest.mark.parametrize("kilobytes", [16_000, 18_000, 20_000, 22_000, 26_000, 30_000])
def test_with_hardly_any_memory_one_line_is_told_whatever_cannot_be_loaded(
    kilobytes: int, command: str
) -> None:
    done = subprocess.run(
        ["prlimit", f"--as={kilobytes << 10}", sys.executable, "-m", "hangtop", command],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "hangtop" not in done.stderr and done.returncode:
        pytest.skip("Python itself does not start")
    assert (done.returncode, done.stderr) in ((1, CRAMPED), (0, ""))


def test_an_error_that_is_no_want_of_memory_is_not_told_as_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hangtop.cli.main.main", lambda: int("none"))
    with pytest.raises(ValueError, match="none"):
        __main__.main()
