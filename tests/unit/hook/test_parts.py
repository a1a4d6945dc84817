"""Parts of the hook by themselves: sockets, descriptors that get a log, Yama, errors."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from hangtop_hook import failures, importing, logs, permit, recorder, server, tee, terminal
from support.processes import all_pids

OLD = 1_600_000_000


def listening(path: Path) -> socket.socket:
    end = socket.socket(socket.AF_UNIX)
    end.bind(str(path))
    end.listen()
    return end


def test_only_sockets_at_which_nobody_listens_are_swept(tmp_path: Path) -> None:
    live = listening(tmp_path / "a-1.sock")
    for name in ("a-2.sock", "young-3.sock"):
        listening(tmp_path / name).close()
    (tmp_path / "note.txt").write_text("not ours")
    for name in ("a-1.sock", "a-2.sock", "note.txt"):
        os.utime(tmp_path / name, (OLD, OLD))
    server.sweep(str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == ["a-1.sock", "note.txt", "young-3.sock"]
    live.close()


def test_no_server_without_torch_or_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_servers", {})
    monkeypatch.setattr(server, "socket_directory", lambda: pytest.fail("not to be made"))
    monkeypatch.setitem(sys.modules, server.BINDING, None)
    server.start("/runs/7")


def test_limit_of_the_control_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_pids_groups", lambda: [str(tmp_path)])
    assert server.room_for_threads()
    for most, room in (("max", True), ("100000", True), ("120", False)):
        (tmp_path / "pids.max").write_text(most + "\n")
        (tmp_path / "pids.current").write_text("100\n")
        assert server.room_for_threads() is room


def test_what_is_a_file_of_the_rank_alone_stays() -> None:
    code = "from hangtop_hook.logs import choose; import sys; print(choose('/x'), file=sys.stderr)"
    packages = os.path.dirname(os.path.dirname(os.path.abspath(logs.__file__)))
    run = "import subprocess, sys; subprocess.run(sys.argv[2:], stdout=%s)"

    def chosen(stdout: str) -> str:
        parent = [sys.executable, "-c", run % stdout, "/dev/null", sys.executable, "-c", code]
        return subprocess.run(
            parent,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": packages},
            check=True,
            text=True,
        ).stderr.strip()

    assert chosen("None") == "[(1, '/x.out'), (2, '/x.err')]"
    assert chosen("sys.stderr") == "[(1, '/x.log')]"
    assert chosen("__import__('tempfile').TemporaryFile()") == "[(2, '/x.err')]"


def test_hardly_any_space_leaves_output_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "free", lambda _: 1 << 20)
    logs.redirect(str(tmp_path), 0)  # a run without logs
    (tmp_path / "logs").mkdir()
    with pytest.raises(OSError, match="output stays"):
        logs.redirect(str(tmp_path), 0)
    assert os.listdir(tmp_path / "logs") == []


def test_yama_is_only_asked_for_where_it_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(permit, "set_ptracer", lambda: asked.append(1))
    monkeypatch.setattr(os, "register_at_fork", lambda **_: None)
    scope = tmp_path / "ptrace_scope"
    assert not permit.let_own_tools_look(str(scope))
    for text, wanted in (("0\n", False), ("1\n", True), ("2\n", False), ("3\n", False)):
        scope.write_text(text)
        assert permit.let_own_tools_look(str(scope)) is wanted
    assert asked == [1]


def test_a_signal_that_the_program_catches_or_ignores_is_left_alone() -> None:
    number = signal.SIGRTMIN + permit.SIGNAL_OFFSET
    assert not permit.is_taken(number)
    for handler in (signal.SIG_IGN, lambda *_: None):
        before = signal.signal(number, handler)
        try:
            assert permit.is_taken(number)
        finally:
            signal.signal(number, before)


def test_an_error_is_one_line_and_no_exception(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise OSError(28, "No space\nleft")

    assert failures.attempt("logs", fail) is None
    assert capsys.readouterr().err == "hangtop: logs: OSError: [Errno 28] No space left\n"


def test_the_finder_is_gone_once_its_module_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program's function is called as ever; by its side the server is asked for."""
    (tmp_path / "joining.py").write_text("def init_process_group(a, b=2):\n    return a, b\n")
    monkeypatch.setattr(importing, "MODULE", "joining")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(importing, "set_names", lambda _: None)
    monkeypatch.setattr(importing, "joined", lambda *_: None)
    started: list[str] = []
    monkeypatch.setattr(server, "start", started.append)
    finders = len(sys.meta_path)
    importing.wait_for_torch("/runs/7")
    assert len(sys.meta_path) == finders + 1
    import joining

    try:
        assert len(sys.meta_path) == finders
        assert started == []
        assert joining.init_process_group(1, b=3) == (1, 3)
        assert started == ["/runs/7"]
        function = joining.init_process_group
        importing.wait_for_torch("/runs/7")
        assert joining.init_process_group is function  # wrapped once
    finally:
        sys.modules.pop("joining")


def test_a_line_without_end_is_copied_in_parts(tmp_path: Path) -> None:
    log, shown = tmp_path / "log", tmp_path / "shown"
    log.write_bytes(b"x" * (tee.MAX_LINE + (2 << 16)))
    with shown.open("wb") as out:
        one = tee.Copy(out.fileno(), str(log), 0, b"[n:0]:")
        while one.step():
            assert len(one.rest) <= tee.MAX_LINE
        os.close(one.file)
    assert shown.read_bytes().startswith(b"[n:0]:xxx")


RANK = """
import os, socket, sys, time
from hangtop_hook import logs
ends = socket.socketpair()
os.dup2(ends[0].fileno(), 77)  # which is inherited, as gloo's are
logs.redirect(sys.argv[1], 0)
print("begun", flush=True)
time.sleep(1000)
"""


def copies(pid: int, rank: int) -> bool:
    """Whether a process is the one beside a rank that copies its lines."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return words[3:4] == [os.fsencode(tee.__file__)] and words[5] == b"%d" % rank
    return False


def test_what_copies_lines_keeps_nothing_else_of_the_rank_s_open(tmp_path: Path) -> None:
    """While it had a socket, the other end would not see that the rank has ended."""
    (tmp_path / "logs").mkdir()
    with subprocess.Popen([sys.executable, "-c", RANK, tmp_path], stdout=subprocess.PIPE) as rank:
        try:
            assert rank.stdout
            assert rank.stdout.readline().endswith(b":0]:begun\n")
            (beside,) = (pid for pid in all_pids() if copies(pid, rank.pid))
            held = [os.readlink(one.path) for one in os.scandir(f"/proc/{beside}/fd")]
            assert len(held) >= 6, held
            assert not [one for one in held if one.startswith("socket:")], held
        finally:
            rank.kill()


def test_a_process_whose_name_is_cut_within_a_letter_is_looked_at(tmp_path: Path) -> None:
    own = Path("/proc/self/comm")
    before = own.read_bytes()
    own.write_bytes("ä".encode() * 8)
    try:
        assert not permit.is_taken(signal.SIGRTMIN + permit.SIGNAL_OFFSET)
        assert terminal.why_not(os.getpid(), None) is None
        assert terminal._ran(os.getpid()) is not None
    finally:
        own.write_bytes(before)


def test_a_rank_that_joined_tells_its_number_in_its_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where no variable does: hangtop reads it there."""
    monkeypatch.setattr("hangtop_hook.rank.become_rank", lambda *_: None)
    monkeypatch.setattr(recorder, "keep", lambda *_: None)
    monkeypatch.setenv("HANGTOP_RANK", "")
    importing.joined(SimpleNamespace(get_rank=lambda: 3), "/runs/7")
    assert os.environ["HANGTOP_RANK"] == "3"


def test_no_more_control_groups_are_asked_than_there_can_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = io.StringIO("".join(f"{n}:pids:/a{n}\n" for n in range(9999)))
    monkeypatch.setattr(server, "open", lambda *_, **__: lines, raising=False)
    assert len(list(server._pids_groups())) == 1 + server._MAX_GROUPS
