"""A prompt in a process of its own, without torch: who is let in, and that nothing is left."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hangtop_core.tools.debugging import carried_program
from hangtop_hook import prompt, server, terminal
from support.processes import PATIENCE, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

HOOK = Path(prompt.__file__).parents[1]
PROGRAM = """
import os, sys, time
sys.path.insert(0, "{hook}")
from hangtop_hook import prompt
os.environ["RANK"] = "7"
assert prompt.wait_for_debugger({directory!r})
{before}
def inner(number):
    double = number * 2
    time.sleep(0.01)
    return double
def other():
    pass
print("ready", flush=True)
while not os.path.exists({directory!r} + "/end"):
    inner(21)
print("ended", sys.gettrace(), len(os.listdir("/proc/self/fd")), flush=True)
"""


class Program:
    """One process that can be asked for a prompt."""

    def __init__(self, directory: Path, before: str = "") -> None:
        (directory / "stacks").mkdir()
        self.directory = directory
        script = directory / "rank.py"  # a file: pdb sets no breakpoint in a text
        script.write_text(PROGRAM.format(hook=HOOK, directory=str(directory), before=before))
        self.process = subprocess.Popen(
            [sys.executable, script],
            stdout=subprocess.PIPE,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def ask(self, *lines: str, seconds: float = 10.0) -> subprocess.CompletedProcess[str]:
        script = HOOK / "hangtop_hook/terminal.py"
        return subprocess.run(
            [sys.executable, "-S", "-s", script, str(self.process.pid), str(seconds)],
            input="".join(f"{line}\n" for line in lines),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def end(self) -> str:
        (self.directory / "end").touch()
        return self.process.communicate(timeout=PATIENCE)[0]


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    one = Program(tmp_path)
    yield one
    one.process.kill()
    one.process.wait()


def test_what_would_end_the_program_or_use_its_terminal_does_not(program: Program) -> None:
    done = program.ask(
        "b inner", "interact", "run", "cl", "help pdb", "raise SystemExit", "sys.exit()", "exit"
    )
    assert done.returncode == 0, done.stderr
    assert "not in a rank that runs" in done.stdout
    assert "all breakpoints are cleared" in done.stdout
    assert "left; it goes on" in done.stdout
    first = len(os.listdir(f"/proc/{program.process.pid}/fd"))
    assert program.ask("c").returncode == 0
    assert len(os.listdir(f"/proc/{program.process.pid}/fd")) == first
    assert program.end().startswith("ended None ")
    assert program.process.returncode == 0


class Client:
    """The other end of a prompt, which may close one of its ways, or read nothing."""

    def __init__(self, program: Program) -> None:
        pid = program.process.pid
        server.socket_directory()
        path = prompt.socket_path(pid, os.getuid())
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(path)
            door.listen()
            door.settimeout(PATIENCE)
            os.kill(pid, signal.SIGRTMIN + prompt.SIGNAL_OFFSET)
            self.end = door.accept()[0]
        os.unlink(path)
        self.end.settimeout(PATIENCE)
        self.said()

    def said(self, until: bytes = b"(Pdb) ") -> bytes:
        """What the prompt says, up to some word or its end."""
        text = b""
        while not text.endswith(until) and (data := self.end.recv(4096)):
            text += data
        return text

    def type(self, line: str, until: bytes = b"(Pdb) ") -> bytes:
        self.end.sendall(f"{line}\n".encode())
        return self.said(until)

    def come_to(self, *lines: str) -> None:
        """Let it stop in `inner`, and do this there."""
        assert b"Breakpoint 1" in self.type("b inner")
        for line in ("c", *lines):
            self.type(line)


@pytest.fixture
def client(program: Program) -> Iterator[Client]:
    one = Client(program)
    yield one
    one.end.close()


def runs_as_if_nothing_had_been(program: Program) -> bool:
    """Whether it has come to its end, without a trace function."""
    told = program.end()
    return (told[:11], program.process.returncode) == ("ended None ", 0)


def test_who_types_no_more_has_left(program: Program, client: Client) -> None:
    """By the end of what is typed alone: what is said could still be read."""
    client.type("b inner")
    client.end.shutdown(socket.SHUT_WR)
    assert client.said(b"never").endswith(b"left; it goes on\n")
    assert runs_as_if_nothing_had_been(program)


def test_who_goes_while_it_runs_has_left(program: Program, client: Client) -> None:
    """By the closed socket alone: nothing is typed or said until a breakpoint, which never is."""
    client.type("b other")
    client.type("c", until=b"without a prompt\n")
    client.end.close()
    assert runs_as_if_nothing_had_been(program)


@pytest.mark.parametrize(
    ("lines", "typed"),
    [
        ((), "x = 1"),  # the prompt itself fails
        (("n", "n"), "s"),  # `--Return--`, which pdb says before it prompts
    ],
)
def test_who_can_be_told_nothing_more_has_left(
    program: Program, client: Client, lines: tuple[str, ...], typed: str
) -> None:
    """By what cannot be written alone: what is typed goes on, and the socket is not closed."""
    client.come_to(*lines)
    client.end.shutdown(socket.SHUT_RD)
    client.end.sendall(f"{typed}\n".encode())
    assert runs_as_if_nothing_had_been(program)


def test_who_never_reads_holds_it_no_longer_than_there_is_one(
    program: Program, client: Client
) -> None:
    client.come_to()
    client.end.sendall(b"p 'x' * 10000000\n")
    assert b"x" * 1000 in client.end.recv(4096), "it says more than a socket takes"
    client.end.close()
    assert runs_as_if_nothing_had_been(program)


def test_a_late_request_stops_nobody(program: Program) -> None:
    """The signal alone, as of somebody who has given up, is nothing."""
    for _ in range(3):
        os.kill(program.process.pid, signal.SIGRTMIN + prompt.SIGNAL_OFFSET)
    assert program.end().startswith("ended None ")
    assert program.process.returncode == 0


NOT_PREPARED = """
import os, signal, sys, time
if not hasattr(sys, "remote_exec"):
    # A double for Python 3.14's own: the other end names its program, and it runs here.
    def come(number, frame):
        with open({path!r}) as file, open(file.read()) as text:
            exec(text.read(), {{}})
    signal.signal(signal.SIGUSR1, come)
def inner(number):
    double = number * 2
    time.sleep(0.01)
    return double
print("ready", flush=True)
while not os.path.exists({end!r}):
    inner(21)
print("ended", sys.gettrace(), len(os.listdir("/proc/self/fd")), flush=True)
"""
BY_SIGNAL = """
import os, signal, sys
def remote_exec(pid, path):
    with open({path!r}, "w") as file:
        file.write(path)
    os.kill(pid, signal.SIGUSR1)
if not hasattr(sys, "remote_exec"):
    sys.remote_exec = remote_exec
"""


def test_a_prompt_is_brought_into_a_rank_that_does_not_have_it(tmp_path: Path) -> None:
    """As `hangtop debug` does with Python 3.14 and later; of older ones all but `remote_exec`."""
    path, end = str(tmp_path / "path"), tmp_path / "end"
    program = carried_program()
    script = tmp_path / "rank.py"
    script.write_text(NOT_PREPARED.format(path=path, end=str(end)))
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            ask = [sys.executable, "-S", "-s", "-c", BY_SIGNAL.format(path=path) + program]

            def prompt_in_it(lines: str, seconds: str) -> subprocess.CompletedProcess[str]:
                return subprocess.run(
                    [*ask, str(process.pid), seconds],
                    input=lines,
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=PATIENCE,
                )

            os.kill(process.pid, signal.SIGSTOP)
            assert "stopped" in prompt_in_it("c\n", "60").stderr
            os.kill(process.pid, signal.SIGCONT)
            for number in range(2):
                done = prompt_in_it(f"b inner\nc\np number + {number}\ncl\nc\n", "60")
                assert f"\n(Pdb) {21 + number}\n" in done.stdout, done
                assert (done.returncode, "it goes on" in done.stdout) == (0, True)
                assert not os.path.exists(terminal_program(process.pid))
            end.touch()
            assert process.communicate(timeout=PATIENCE)[0].startswith("ended None ")
        finally:
            process.kill()


def terminal_program(pid: int) -> str:
    return prompt.socket_path(pid, os.getuid())[: -len(".sock")] + ".py"


@pytest.mark.parametrize("gets_none", [True, False])
def test_a_process_that_wants_a_processor_and_gets_none_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gets_none: bool
) -> None:
    """As on a node with far too much to do; one that sleeps in C does not come."""
    path, looks = str(tmp_path / "door"), iter(range(100))
    with socket.socket(socket.AF_UNIX) as door, socket.socket(socket.AF_UNIX) as rank:
        door.bind(path)
        door.listen()

        def ran(pid: int) -> float | None:
            if next(looks) == 8:
                rank.connect(path)
            return 5.0 if gets_none else None

        monkeypatch.setattr(terminal, "_ran", ran)
        end = terminal._let_in(door, os.getpid(), 0.2, prompt.peer)
        assert (end is not None) is gets_none
        if end is not None:
            end.close()


def test_a_thread_that_sleeps_is_told_from_one_that_runs() -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            assert wait_until(lambda: terminal._ran(other.pid) is None)
        finally:
            other.kill()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        try:
            assert wait_until(lambda: (terminal._ran(other.pid) or 0.0) > 0.2)
        finally:
            other.kill()


def test_a_process_that_ends_at_its_prompt_is_told(program: Program) -> None:
    done = program.ask("import os", "os._exit(3)")
    assert done.returncode == terminal.ENDED, done
    assert "has ended" in done.stderr


def test_another_debugger_is_left_alone(tmp_path: Path) -> None:
    one = Program(tmp_path, "sys.settrace(lambda *_: None)")
    try:
        assert "another debugger" in one.ask("c").stdout
        assert "None" not in one.end()
    finally:
        one.process.kill()


def test_a_process_without_the_handler_gets_no_signal() -> None:
    """The signal would end it."""
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            assert "hangtop run" in str(terminal.why_not(other.pid, signal.SIGRTMIN + 8))
            assert terminal.main([str(other.pid)]) == terminal.CANNOT
            assert other.poll() is None
        finally:
            other.kill()
    assert terminal.why_not(2**22 + 1, signal.SIGRTMIN + 8) == "it is not there"


def test_only_an_own_directory_that_is_closed_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sockets" / "debug-1.sock"
    path.parent.mkdir(mode=0o700)
    monkeypatch.setattr(prompt, "socket_path", lambda pid, uid: str(path))
    assert prompt.connect(1) is None
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(path))
        door.listen()
        end = prompt.connect(1)
        assert end is not None
        assert prompt.peer(end)[:2] == (os.getpid(), os.getuid())
        end.close()
        path.parent.chmod(0o755)
        assert prompt.connect(1) is None
    assert server.socket_directory().startswith("/tmp/hangtop-")
