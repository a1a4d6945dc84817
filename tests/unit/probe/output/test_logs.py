"""The probe's windows of log files: what is read, and what is never opened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from hangtop_probe.node import permission
from hangtop_probe.output import logs
from hangtop_probe.table import facts
from hangtop_probe.wire.requests import Request
from support.processes import wait_until

if TYPE_CHECKING:
    from pathlib import Path


class Known:
    """The table, as far as logs need it."""

    def __init__(self) -> None:
        self.outputs: dict[str, int] = {}


def reader(known: Known | None = None) -> logs.Logs:
    return logs.Logs(known or Known(), permission.rights())  # type: ignore[arg-type]


def ask(
    known: Known | None = None, by: logs.Logs | None = None, **message: Any
) -> list[dict[str, Any]]:
    """What is answered to a request, without its end."""
    sent: list[dict[str, Any]] = []
    request = Request({"id": 1, "op": "log", **message}, lambda data, urgent: sent.append(data))
    (by or reader(known)).handle(request)
    return [one["data"] for one in sent]


@pytest.fixture
def printing(tmp_path: Path) -> Any:
    """Starts a process whose outputs are what is given; it prints and sleeps."""
    started: list[subprocess.Popen[bytes]] = []

    def start(out: Any, err: Any = subprocess.STDOUT, text: str = "hello") -> int:
        code = f"import time; print({text!r}, flush=True); time.sleep(60)"
        process = subprocess.Popen([sys.executable, "-c", code], stdout=out, stderr=err)
        started.append(process)
        return process.pid

    yield start
    for process in started:
        process.kill()
        process.wait()


ROTATES = """
import os, sys
def opened():
    os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 1)
opened()
os.write(1, b"hello\\n")
os.write(2, b"!")
os.read(0, 1)
os.write(1, b"late\\n")
opened()
os.write(1, b"new\\n")
os.write(2, b"!")
os.read(0, 1)
"""
"""Prints to a file; when it is told to, prints once more and opens it anew by its name."""


@pytest.fixture
def rotating(tmp_path: Path) -> Any:
    """A program that opens its log anew at its `turn`."""
    pipe = subprocess.PIPE
    argv = [sys.executable, "-c", ROTATES, str(tmp_path / "log")]
    with subprocess.Popen(argv, stdin=pipe, stderr=pipe, text=True) as process:
        assert process.stderr
        process.stderr.read(1)
        yield process
        process.kill()


def turn(process: subprocess.Popen[str]) -> None:
    assert process.stdin
    assert process.stderr
    process.stdin.write("x")
    process.stdin.flush()
    process.stderr.read(1)


def wait_for(path: Path, text: str) -> None:
    assert wait_until(lambda: path.exists() and text in path.read_text()), path


def test_what_goes_through_a_pipe_is_read_where_tee_writes_it(tmp_path: Path) -> None:
    """Two pipes in a row, of which the last reader also writes to a file of its own."""
    path, console = tmp_path / "train.log", tmp_path / "console.out"
    code = "import os, time; print('hello', os.getpid(), flush=True); time.sleep(60)"
    line = f'{sys.executable} -c "{code}" 2>&1 | cat | tee {path} > {console}'
    shell = subprocess.Popen(["sh", "-c", line], start_new_session=True)
    try:
        wait_for(path, "hello")
        wait_for(console, "hello")
        pid = int(path.read_text().split()[1])
        assert facts._outputs(pid)[2:] == (str(console), str(path))
        pieces = ask(pids=[pid])
        assert {one["path"] for one in pieces} == {str(path), str(console)}
        assert {one["text"] for one in pieces if "text" in one} == {f"hello {pid}\n"}
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()


def test_the_end_of_what_a_process_prints(tmp_path: Path, printing: Any) -> None:
    path = tmp_path / "train.log"
    with path.open("w") as file:
        file.write("x" * 100_000 + "\n")
        file.flush()
        pid = printing(file)
    wait_for(path, "hello")
    first, second = ask(pids=[pid])
    assert (first["pid"], first["fd"], first["path"]) == (pid, 2, str(path))
    assert first["text"].endswith("x\nhello\n")
    assert first["size"] - first["start"] == logs.WINDOW == len(first["text"])
    # The other descriptor leads to the same file, which is not sent twice.
    assert (second["fd"], second["inode"]) == (1, first["inode"])
    assert "text" not in second
    assert [one["text"] for one in ask(pids=[pid], window=6) if "text" in one] == ["hello\n"]


def test_only_what_is_new_is_sent(tmp_path: Path, printing: Any) -> None:
    path = tmp_path / "train.log"
    with path.open("w") as file:
        pid = printing(file, subprocess.DEVNULL)
    wait_for(path, "hello")
    by = reader()
    (first,) = ask(by=by, pids=[pid])
    since = {first["inode"]: first["size"]}
    (again,) = ask(by=by, pids=[pid], since=since)
    assert "text" not in again
    with path.open("a") as file:
        file.write("more\n")
    (more,) = ask(by=by, pids=[pid], since=since)
    assert (more["text"], more["start"], more["cut"]) == ("more\n", 6, False)
    path.write_text("new\n")
    (cut,) = ask(by=by, pids=[pid], since=since)
    assert (cut["text"], cut["cut"]) == ("new\n", True)
    path.write_text("cut, and longer than before\n")
    (cut,) = ask(by=by, pids=[pid], since={cut["inode"]: cut["size"]})
    assert (cut["text"], cut["cut"]) == ("cut, and longer than before\n", True)
    with path.open("a") as file:
        file.write("more\n")
    (more,) = ask(by=by, pids=[pid], since={cut["inode"]: cut["size"]})
    assert (more["text"], more["cut"]) == ("more\n", False)


def test_what_came_before_a_renamed_log_was_opened_anew_is_read_first(
    tmp_path: Path, rotating: subprocess.Popen[str]
) -> None:
    by, pids = reader(), [rotating.pid]
    (first,) = ask(by=by, pids=pids, news=True)
    known = {first["inode"]: first["size"]}
    (tmp_path / "log").rename(tmp_path / "log.1")
    turn(rotating)
    old, new = ask(by=by, pids=pids, since=known, news=True)
    assert (old["inode"], old["start"], old["text"]) == (first["inode"], 6, "late\n")
    assert old["path"] == str(tmp_path / "log.1")
    assert (old["pid"], old["fd"], old["cut"]) == (rotating.pid, 1, False)
    assert (new["path"], new["text"]) == (str(tmp_path / "log"), "new\n")
    known = {one["inode"]: one["size"] for one in (old, new)}
    assert ask(by=by, pids=pids, since=known, news=True) == [], "nothing is said twice"


@pytest.mark.parametrize("gone", [True, False])
def test_a_renamed_log_is_read_on_only_where_it_lay(
    tmp_path: Path, rotating: subprocess.Popen[str], gone: bool
) -> None:
    by, pids = reader(), [rotating.pid]
    (first,) = ask(by=by, pids=pids)
    if gone:
        (tmp_path / "log").unlink()
    else:
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "log").rename(tmp_path / "elsewhere" / "log")
    turn(rotating)
    (new,) = ask(by=by, pids=pids, since={first["inode"]: first["size"]})
    assert new["text"] == "new\n"


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give a file to somebody")
def test_root_reads_no_file_of_somebody_else_that_has_the_number_of_a_log(
    tmp_path: Path, rotating: subprocess.Popen[str]
) -> None:
    by, pids = reader(), [rotating.pid]
    (first,) = ask(by=by, pids=pids)
    (tmp_path / "log").rename(tmp_path / "secret")
    os.chown(tmp_path / "secret", 65534, 65534)
    turn(rotating)
    (new,) = ask(by=by, pids=pids, since={first["inode"]: first["size"]})
    assert new["text"] == "new\n"


def test_pipes_terminals_and_fifos_are_not_opened(tmp_path: Path, printing: Any) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    handle = os.open(fifo, os.O_RDWR)
    assert ask(pids=[printing(subprocess.PIPE)]) == []
    assert ask(pids=[printing(subprocess.DEVNULL)]) == []
    pid = printing(handle)
    assert ask(pids=[pid]) == []
    assert os.read(handle, 100).startswith(b"hello")
    os.close(handle)
    assert ask(pids=[1 << 30]) == []


def test_paths_count_only_where_a_process_printed_to_them(tmp_path: Path) -> None:
    path, link = tmp_path / "gone.log", tmp_path / "link.log"
    path.write_text("last words\n")
    link.symlink_to(path)
    assert ask(paths=[str(path)]) == []
    known = Known()
    facts.remember(known.outputs, (str(path), "/dev/null", "pipe:[1]"), os.getuid())
    known.outputs[str(link)] = os.getuid()
    assert list(known.outputs) == [str(path), str(link)]
    (one,) = ask(known, paths=[str(path)])
    assert (one["pid"], one["text"]) == (None, "last words\n")
    assert ask(known, paths=[str(link)]) == []
    known.outputs[str(path)] = os.getuid() + 1
    assert ask(known, paths=[str(path)]) == [], "it is not whose process printed to it"
    known.outputs[str(path)] = os.getuid()
    path.unlink()
    (missing,) = ask(known, paths=[str(path)])
    assert "No such file" in missing["failure"]["text"]


def test_paths_of_other_ranks_count_which_differ_in_numbers_only(tmp_path: Path) -> None:
    known = Known()
    facts.remember(known.outputs, (str(tmp_path / "rank0.log"),), os.getuid())
    for name in ("rank12.log", "rank.txt", "secret"):
        (tmp_path / name).write_text("last words\n")
    paths = [str(tmp_path / name) for name in ("rank12.log", "rank.txt", "secret")]
    assert [one["path"] for one in ask(known, paths=paths)] == paths[:1]


def test_what_is_remembered_is_bounded() -> None:
    known: dict[str, int] = {}
    for number in range(facts.MAX_PATHS + 10):
        facts.remember(known, (f"/logs/{number}",), 0)
    assert len(known) == facts.MAX_PATHS
    assert f"/logs/{facts.MAX_PATHS + 9}" in known


def test_secrets_are_masked(tmp_path: Path, printing: Any) -> None:
    path = tmp_path / "train.log"
    with path.open("w") as file:
        pid = printing(
            file, subprocess.DEVNULL, "WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567"
        )
    wait_for(path, "WANDB")
    (one,) = ask(pids=[pid])
    assert "0123456789" not in one["text"]


def test_what_was_said_is_not_said_again_to_who_asks_for_news(
    tmp_path: Path, printing: Any
) -> None:
    path = tmp_path / "train.log"
    with path.open("w") as file:
        pid = printing(file)
    wait_for(path, "hello")
    one = reader()
    first = ask(by=one, pids=[pid], news=True)
    assert [said.get("text") for said in first] == ["hello\n", None], "two descriptors, one file"
    since = {first[0]["inode"]: first[0]["size"]}
    assert ask(by=one, pids=[pid], news=True, since=since) == []
    assert len(ask(by=one, pids=[pid], since=since)) == 2, "a person asked"
    assert len(ask(by=one, pids=[pid], news=True)) == 2, "the head does not have it"
    with path.open("a") as file:
        file.write("more\n")
    news = ask(by=one, pids=[pid], news=True, since=since)
    assert [said.get("text") for said in news] == ["more\n", None]


def test_outputs_that_are_remembered_meanwhile_disturb_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rank0.log"
    path.write_text("last words\n")
    known = Known()
    facts.remember(known.outputs, (str(path), "/logs/a"), os.getuid())

    class Watching:
        """A pattern during which the watch goes on."""

        def sub(self, _: str, name: str) -> str:
            facts.remember(known.outputs, (f"/logs/{len(known.outputs)}",), 0)
            return name

    monkeypatch.setattr(logs, "_NUMBER", Watching())
    assert [one["path"] for one in ask(known, paths=[str(path)])] == [str(path)]
