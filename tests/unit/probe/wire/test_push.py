"""A probe that nothing can be sent to: all is in one argument, and it ends by itself."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hangtop_core.attach.connect import bundle
from hangtop_core.attach.ways.ssh import Login
from hangtop_probe.wire import wire
from hangtop_probe.wire.server import Push
from support.booted import not_to_be_shared
from support.processes import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

PYENV = Path.home() / ".pyenv" / "versions"
WATCH = {"op": "watch", "id": 1, "interval": 0.2, "all_users": False, "pids": None}


@contextlib.contextmanager
def run(
    push: Push, home: Path, python: str = sys.executable, shell: str = "sh"
) -> Iterator[subprocess.Popen[bytes]]:
    """The probe as pdsh starts it: by a shell, with a standard input that never says anything."""
    never, nobody = os.pipe()
    command = Login(python=python).shell_command(bundle.pushed(push))
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "XDG_CACHE_HOME": str(home)}
    env["HANGTOP_TEST_RUN"] = os.environ.get("HANGTOP_TEST_RUN", "")
    process = subprocess.Popen(
        [shell, "-c", command], stdin=never, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
    )
    os.close(never)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE)
        os.close(nobody)


def messages(process: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    reader = wire.Reader()
    assert process.stdout
    for line in process.stdout:
        assert len(line) <= 4000
        message = reader.feed(line.rstrip(b"\n"))
        if message is not None and "boot" not in message:
            yield message


@pytest.mark.parametrize("version", ["", "3.8.18"], ids=["this", "3.8"])
def test_it_pushes_until_its_time_is_over(tmp_path: Path, version: str) -> None:
    python = str(PYENV / version / "bin" / "python3") if version else sys.executable
    if not Path(python).exists():
        pytest.skip(f"no Python {version} on this machine")
    push = Push({"*": [WATCH]}, 4.0, 0, 4000, hello=True)
    began = time.monotonic()
    with run(push, tmp_path, python) as process:
        first, *rest = messages(process)
        assert process.wait(PATIENCE) == 0
    assert time.monotonic() - began >= 4.0
    assert first["hello"]["protocol"] == wire.PROTOCOL
    able = first["hello"]["capabilities"]
    assert not able["strace"]["ok"]
    assert "pdsh" in able["strace"]["why"]
    *pieces, end = rest
    assert len(pieces) >= 2
    assert [piece["seq"] for piece in pieces] == list(range(len(pieces)))
    assert pieces[0]["data"]["whole"]
    assert end == {"id": 1, "end": {"cancelled": True}}


def test_it_answers_what_is_for_its_host_and_ends(tmp_path: Path) -> None:
    own = {"op": "descriptors", "id": 7, "pids": [os.getpid()]}
    other = {"op": "descriptors", "id": 8, "pids": [os.getpid()]}
    push = Push({socket.gethostname(): [own], "other": [other]}, 60.0, 5000, 700, hello=False)
    with run(push, tmp_path) as process:
        told = list(messages(process))
        assert process.wait(PATIENCE) == 0
    assert [message["id"] for message in told] == [7, 7]
    assert told[0]["data"]["pid"] == os.getpid()
    assert told[0]["data"]["descriptors"], "it came in parts, and whole"
    assert told[1]["end"] == {"pids": 1}


@pytest.mark.parametrize("shell", ["sh", "bash", "zsh", "tcsh", "fish"])
def test_what_it_cannot_do_is_an_answer_whatever_the_login_shell(
    tmp_path: Path, shell: str
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on this machine")
    push = Push({"*": [{"op": "nonsense", "id": 3}, {"id": "x"}]}, 60.0, 0, 4000, hello=False)
    with run(push, tmp_path, shell=shell) as process:
        told = {message["id"]: message["err"]["kind"] for message in messages(process)}
    assert told == {3: "unsupported", 0: "error"}


@pytest.mark.parametrize("asked", [[], [{**WATCH, "interval": 60.0}]], ids=["idle", "watching"])
def test_it_ends_when_nobody_reads_it_any_more(tmp_path: Path, asked: list[dict[str, Any]]) -> None:
    with run(Push({"*": asked}, 60.0, 0, 4000, hello=True), tmp_path) as process:
        assert "hello" in next(messages(process))
        assert process.stdout
        process.stdout.close()
        began = time.monotonic()
        process.wait(PATIENCE)
        assert time.monotonic() - began < 30
        process.stdout = None


def test_py_spy_is_used_where_it_is_and_else_missed_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def able() -> dict[str, Any]:
        with run(Push({}, 0.2, 0, 4000, hello=True), tmp_path, "/usr/bin/python3") as process:
            found: dict[str, Any] = next(messages(process))["hello"]["capabilities"]["py-spy"]
        return found

    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    if why := not_to_be_shared():
        pytest.skip(why)
    here = able()
    assert here["ok"], "the head's own is at the same path, as on a shared file system"
    other = tmp_path / "py-spy"
    other.write_text("gone before anybody looks")
    digest = bundle.cachedir.file_hash(str(other))
    other.unlink()
    monkeypatch.setattr(bundle, "_py_spy", lambda: str(other))
    monkeypatch.setattr(bundle.cachedir, "file_hash", lambda _: digest)
    missed = able()
    assert not missed["ok"]
    assert "an argument cannot carry it; one hangtop over ssh leaves it there" in missed["why"]
