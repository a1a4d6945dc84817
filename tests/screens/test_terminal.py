"""The app in a real pseudo-terminal: bytes per second, what a terminal makes of them, leaving."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyte
import pytest

from support.processes import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).parents[2]
BUDGET = 5_000
"""Bytes a second at 120x36, with a job whose counters move."""


class Terminal:
    """A pty with the app in it, and an emulator that draws what comes out."""

    def __init__(
        self, process: subprocess.Popen[bytes], master: int, size: tuple[int, int]
    ) -> None:
        self.process = process
        self.master = master
        self.screen = pyte.Screen(*size)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process.send_signal(signal.SIGWINCH)
        self.screen.resize(rows, columns)

    def read_for(self, seconds: float, at_least: int | None = None) -> int:
        """Draw what comes in this time, or until it is so many bytes; how many it was."""
        until = time.monotonic() + seconds
        count = 0
        while (left := until - time.monotonic()) > 0 and not 0 < (at_least or 0) <= count:
            if not select.select([self.master], [], [], left)[0]:
                break
            try:
                data = os.read(self.master, 65536)
            except OSError:
                break
            if not data:
                break
            count += len(data)
            self.raw += data
            self._stream.feed(data)
        return count

    def costs(self, seconds: float, at_most: float) -> float:
        """Bytes a second, once what is drawn in the beginning is over."""
        until = time.monotonic() + PATIENCE
        while (rate := self.read_for(seconds) / seconds) > at_most and time.monotonic() < until:
            pass
        return rate

    def wait_for(self, text: str) -> None:
        until = time.monotonic() + PATIENCE
        while text not in self.text:
            assert time.monotonic() < until, f"{text!r} is not on the screen:\n{self.text}"
            self.read_for(0.2)

    def ended(self) -> int | None:
        """Exit status once it has ended; what it still writes has to be read for that."""
        until = time.monotonic() + PATIENCE
        while self.process.poll() is None and time.monotonic() < until:
            self.read_for(0.2)
        return self.process.poll()

    def send(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    @property
    def text(self) -> str:
        return "\n".join(self.screen.display)


def _control() -> None:
    """Let stdin control what runs here: a shell stops and continues jobs only then."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def played(*arguments: str) -> list[str]:
    return [sys.executable, str(ROOT / "tests/support/play.py"), *arguments]


@contextmanager
def terminal(
    *arguments: str, size: tuple[int, int], run: Sequence[str] = (), **variables: str
) -> Iterator[Terminal]:
    """A recording, or another program, at a terminal of this size."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
    environ = {key: value for key, value in os.environ.items() if key not in ("TMUX", "COLORTERM")}
    path = os.pathsep.join(str(ROOT / folder) for folder in ("core", "tui", "tests"))
    environ |= {"TERM": "xterm-256color", "PYTHONPATH": path, **variables}
    process = subprocess.Popen(
        [*(run or played(*arguments))],
        stdin=slave, stdout=slave, stderr=slave, env=environ, start_new_session=True,
        preexec_fn=_control if run else None,
    )  # fmt: skip
    os.close(slave)
    try:
        yield Terminal(process, master, size)
    finally:
        process.kill()
        process.wait()
        os.close(master)


def test_a_live_hang_costs_few_bytes_and_leaving_restores_the_terminal() -> None:
    with terminal("skip", size=(120, 36)) as shown:
        shown.wait_for("missing-collective")
        shown.read_for(3.0)
        busy = shown.costs(4.0, BUDGET / 4)
        assert busy <= BUDGET / 4, f"{busy:.0f} bytes a second"
        assert "HUNG" in shown.text.splitlines()[0]
        shown.send("q")
        assert shown.ended() == 0
        shown.read_for(0.5)
        assert b"\x1b[?1049l" in shown.raw
        assert b"\x1b[?1000h" not in shown.raw, "the mouse is off unless asked for"


def test_ctrl_z_leads_to_the_shell_and_fg_back_also_with_a_program_between() -> None:
    """The emulator has no second screen, as GNU screen and the console: what is on it at the prompt
    was left there."""
    with terminal(size=(120, 36), run=("bash", "--norc", "-i"), PS1="at-the-shell ") as shown:
        shown.wait_for("at-the-shell")
        # A script that waits, as `make demo` does: it has to stop, too.
        shown.send(f"sh -c '{shlex.join(played('skip'))}; echo waited'\r")
        shown.wait_for("RANKS  sort suspicion")
        shown.send("\x1a")
        shown.wait_for("Stopped")
        assert "RANKS" not in shown.text
        shown.send("fg\r")
        shown.wait_for("RANKS  sort suspicion")
        shown.wait_for("missing-collective")
        shown.send("q")
        shown.wait_for("waited")
        assert "RANKS" not in shown.text
        shown.send("exit\r")
        assert shown.ended() == 0


def test_without_a_shell_ctrl_z_says_so_and_freezes_nothing() -> None:
    """As by `ssh -t NODE hangtop`: nobody could bring it back."""
    with terminal("skip", "--still", size=(80, 24)) as shown:
        shown.wait_for("missing-collective")
        shown.send("\x1a")
        shown.wait_for("no shell waits here that could bring hangtop back")
        shown.process.send_signal(signal.SIGTSTP)
        shown.send("2")
        shown.wait_for("MERGED STACKS")


@pytest.mark.parametrize("told", [True, False])
def test_a_terminal_that_closes_ends_it(told: bool) -> None:
    """As a window that is closed does it: SIGHUP, and whatever is written afterwards fails; and
    without SIGHUP, as under nohup, or where the terminal does not control the app."""
    with terminal("skip", size=(80, 24)) as shown:
        shown.wait_for("missing-collective")
        if told:
            os.killpg(shown.process.pid, signal.SIGHUP)
        os.close(shown.master)
        shown.master = os.open(os.devnull, os.O_RDONLY)
        shown.process.wait(PATIENCE)


def test_any_size_it_is_changed_to_while_data_flows_is_drawn() -> None:
    with terminal("skip", size=(120, 36)) as shown:
        shown.wait_for("missing-collective")
        for columns, rows in ((10, 3), (500, 200), (1, 1), (10, 3), (80, 24)):
            shown.resize(columns, rows)
            if columns > 100:
                shown.wait_for("RANKS  sort suspicion")
            else:
                assert shown.read_for(PATIENCE, at_least=1), (columns, rows)
            assert shown.process.poll() is None
        shown.wait_for("missing-collective")
        shown.send("q")
        assert shown.ended() == 0


def test_a_shell_has_the_terminal_and_gives_it_back(tmp_path: Path) -> None:
    shell = tmp_path / "shell"
    shell.write_text("#!/bin/sh\necho entered; read line; echo got $line; read line; exit 3\n")
    shell.chmod(0o755)
    with terminal("skip", size=(120, 36), SHELL=str(shell)) as shown:
        shown.wait_for("missing-collective")
        shown.send("!")
        shown.wait_for("entered")
        told = f"hangtop: your shell on node1, leaving it comes back: {shell}"
        assert told.encode() in shown.raw
        # The emulator has one screen only: what comes back is seen on an empty one.
        shown.screen.reset()
        shown.send("9 is no key now\r")
        shown.wait_for("got 9 is no key now")
        # Ctrl-C reaches all processes of the terminal: the script ends, hangtop does not.
        os.killpg(shown.process.pid, signal.SIGINT)
        shown.wait_for("missing-collective")
        assert "9 Nodes" in shown.text
        shown.send("@")
        shown.wait_for("COMMANDS")


def test_a_still_picture_costs_nothing_but_its_ages() -> None:
    with terminal("skip", "--still", size=(120, 36)) as shown:
        shown.wait_for("missing-collective")
        shown.read_for(4.0)
        assert shown.costs(3.0, 400) <= 400


@pytest.mark.parametrize(
    "variables",
    [
        {"TERM": "screen"},
        {"TERM": "linux"},
        {"NO_COLOR": "1", "LC_ALL": "C"},
        {"COLORTERM": "truecolor", "PYTHONIOENCODING": "latin-1"},
    ],
    ids=str,
)
def test_other_terminals_show_the_same(variables: dict[str, str]) -> None:
    with terminal("stopped", size=(80, 24), **variables) as shown:
        shown.wait_for("rank-stopped")
        # The locale C says nothing of the terminal: ssh hardly ever brings a locale along.
        assert shown.text.isascii() == ("PYTHONIOENCODING" in variables)
        shown.send("2")
        shown.wait_for("MERGED STACKS")
        if "NO_COLOR" in variables:
            assert b"\x1b[31m" not in shown.raw
            assert b";31" not in shown.raw


def test_dumb_terminals_are_refused_with_what_to_use_instead() -> None:
    with terminal("skip", size=(80, 24), TERM="dumb") as shown:
        shown.wait_for("TERM=dumb cannot show screens")
        assert shown.ended() not in (0, None)
