"""Who else has a file, pipe or socket open: real descriptors of real processes."""

from __future__ import annotations

import os
import pty
import shutil
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from hangtop_probe.descriptors import beside, descriptors, holders, nodewide
from hangtop_probe.node import permission
from hangtop_probe.wire.guard import Guard
from hangtop_probe.wire.requests import Refused, Request

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SCRIPT = """
import socket, sys
port, path = int(sys.argv[1]), sys.argv[2]
kept = socket.create_connection(("127.0.0.1", port)), open(path)
print(kept[0].fileno(), kept[1].fileno(), flush=True)
sys.stdin.read()
"""


def ask(pid: object, fd: object) -> dict[str, Any]:
    request = Request({"id": 1, "op": "holders", "pid": pid, "fd": fd}, lambda *_: None)
    return holders.handle(request, permission.rights())


@pytest.fixture
def other(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], socket.socket, list[int]]]:
    """A process with a socket to us and a file; our end, and its two descriptors."""
    (tmp_path / "x").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = [sys.executable, "-c", SCRIPT, str(server.getsockname()[1]), str(tmp_path / "x")]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            mine, _ = server.accept()
            assert process.stdout is not None
            fds = [int(word) for word in process.stdout.readline().split()]
            with mine:
                yield process, mine, fds
        finally:
            process.kill()
            process.communicate()


def test_the_other_end_of_a_socket(
    other: tuple[subprocess.Popen[str], socket.socket, list[int]],
) -> None:
    process, mine, fds = other
    said = ask(os.getpid(), mine.fileno())
    [row] = said["holders"]
    assert (row["pid"], row["fd"], row["how"]) == (process.pid, fds[0], "has the other end")


def test_who_has_a_file_and_who_has_another_of_its_name(
    other: tuple[subprocess.Popen[str], socket.socket, list[int]], tmp_path: Path
) -> None:
    process, _, fds = other
    with (tmp_path / "x").open("a") as mine:
        [row] = ask(process.pid, fds[1])["holders"]
        assert (row["pid"], row["fd"], row["mode"]) == (os.getpid(), mine.fileno(), "w")
    (tmp_path / "x").rename(tmp_path / "y")
    (tmp_path / "x").write_text("")
    with (tmp_path / "x").open():
        assert ask(process.pid, fds[1])["holders"] == []


def test_the_ends_of_a_pipe(other: tuple[subprocess.Popen[str], Any, Any]) -> None:
    process, _, _ = other
    assert process.stdin is not None
    said = ask(process.pid, 0)
    assert said["target"].startswith("pipe:[")
    assert (os.getpid(), process.stdin.fileno()) in [(r["pid"], r["fd"]) for r in said["holders"]]


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(Refused, match="no descriptor 4000"):
        ask(os.getpid(), 4000)
    with pytest.raises(Refused, match="the process is gone"):
        ask(1 << 22, 0)
    for pid, fd in (("1", 0), (1, None), (-1, 0), (1, -1)):
        with pytest.raises(Refused, match="needs"):
            ask(pid, fd)


def test_a_terminal_from_outside_of_a_container_is_one() -> None:
    """As after docker exec -it: the terminal lies on no mount that the process sees."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("only root may make a mount namespace, by unshare")
    master, terminal = pty.openpty()
    process = subprocess.Popen(
        ["unshare", "-m", "sh", "-c", "echo ready; read line"],
        stdin=terminal,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        row = descriptors.Reader(process.pid, nodewide.Node()).descriptor(0)
        assert row is not None
        assert (row["kind"], row["target"]) == ("tty", os.ttyname(terminal))
        assert "mount" not in row
    finally:
        process.kill()
        process.communicate()
        os.close(master)
        os.close(terminal)


def test_a_file_that_another_process_has_locked_to_itself(tmp_path: Path) -> None:
    path = tmp_path / "seen.db"
    path.write_text("")
    script = (
        "import fcntl, sys; f = open(sys.argv[1], 'r+'); how = getattr(fcntl, sys.argv[2])\n"
        "fcntl.lockf(f, how); print('locked', flush=True); sys.stdin.read()"
    )
    for how, told in (("LOCK_EX", "by others"), ("LOCK_SH", None)):
        with subprocess.Popen(
            [sys.executable, "-c", script, str(path), how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as holder, path.open("r+") as mine:  # fmt: skip
            try:
                assert holder.stdout is not None
                assert holder.stdout.readline() == b"locked\n"
                reader = descriptors.Reader(os.getpid(), nodewide.Node())
                [row] = [one for one in reader.table()[0] if one["fd"] == mine.fileno()]
                assert row.get("locked") == told
                pids = [one["pid"] for one in row.get("holders", ())]
                assert pids == ([holder.pid] if told else [])
                # of an interpreter what it runs is told
                names = [one["comm"] for one in row.get("holders", ())]
                assert all(" -c import fcntl, sys; f = open(" in name for name in names)
            finally:
                holder.kill()


def test_a_process_whose_memory_is_locked_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """So while a page fault waits for a file server, and another thread for the lock."""
    given_back = threading.Event()
    read = beside.procfs.read

    def hanging(path: str, *limit: int) -> bytes | None:
        if path.endswith(("/cmdline", "/environ")):
            given_back.wait()
        return read(path, *limit)

    monkeypatch.setattr(beside.procfs, "read", hanging)
    monkeypatch.setattr(beside, "_GUARD", Guard(1))
    try:
        entry = beside.holder(os.getpid(), beside.HOLDS)
        assert entry is not None
        assert entry["comm"].startswith("py")
        assert beside.store_port(os.getpid(), nodewide.Node()) is None
    finally:
        given_back.set()
