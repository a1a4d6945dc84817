"""The app in a terminal of 120x36 on a simulated cluster: start, keys, a slow link, rest, memory.

    PYTHONPATH=core:tui:tests:benchmarks python benchmarks/terminal.py [NODES] [--seconds S]

The app (`fleet.py --tui`) runs in a pseudo-terminal whose other end is read by pyte's emulator:

- start: from starting Python to the first screen with all ranks: the rank table has a row for each
  (its border counts them: a rank has none before its node has told of it), and line 1 says that all
  nodes answer. World size, which one rank knows, does not count. The nodes are there before; what
  reaches them are processes of this machine, one each, where real ones would be ssh.
- keys, with every row changing every second: from writing `j` or `k` to the first byte that comes
  back. The peer is a bare Textual app of one DataTable with as many rows, that nothing changes.
- a link of 20 kB/s: bytes are taken at that speed only. How far behind it is, is the age of what
  is taken: bytes that wait in the pseudo-terminal, by that speed.
- rest: CPU time of the app's process as a share of one core while the job hangs, the head included:
  soon after the verdict, and a minute later.
"""

from __future__ import annotations

import argparse
import os
import re
import select
import statistics
import struct
import sys
import termios
import time
from compileall import compile_dir
from contextlib import contextmanager
from fcntl import ioctl
from pathlib import Path
from pty import openpty
from subprocess import Popen
from typing import TYPE_CHECKING

import pyte

import figures
import measures
from simulated.launcher import Fleet
from simulated.story import Story

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SIZE = (120, 36)
LINK_B = 20_000
PATIENCE_S = 240.0
REST_S = ((30.0, 45.0), (60.0, 120.0))
"""Seconds after the verdict between which nothing happens."""
SHOWN = re.compile(r" (\d+)-(\d+) of (\d+) ")
"""Which rows of a table can be seen, in its border."""
PEER = """
import sys
from textual.app import App
from textual.widgets import DataTable
class Peer(App):
    def compose(self):
        yield DataTable(cursor_type="row")
    def on_mount(self):
        table = self.query_one(DataTable)
        table.add_columns(*"abcdefgh")
        for number in range(int(sys.argv[1])):
            table.add_row(*(f"{number} ranks" for _ in range(8)))
        table.focus()
    def key_j(self):
        self.query_one(DataTable).action_cursor_down()
    def key_k(self):
        self.query_one(DataTable).action_cursor_up()
Peer().run()
"""


class Terminal:
    """One end of a pseudo-terminal, and an emulator that draws what comes out."""

    def __init__(self, process: Popen[bytes], master: int, began: float = 0.0) -> None:
        self.process, self.master, self.began = process, master, began
        self._screen = pyte.Screen(*SIZE)
        self._stream = pyte.ByteStream(self._screen)

    def read(self, wait: float, most: int = 65536) -> int:
        """Take and draw what is there, or comes within ``wait`` seconds; how many bytes it was."""
        if not select.select([self.master], [], [], max(wait, 0.0))[0]:
            return 0
        data = os.read(self.master, most)
        self._stream.feed(data)
        return len(data)

    def read_until(self, holds: Callable[[str], object], patience: float = PATIENCE_S) -> None:
        """Draw until something holds for the text on the screen."""
        until = time.monotonic() + patience
        while not holds(self.text):
            if time.monotonic() > until:
                sys.exit(f"not seen in time; the screen is\n{self.text}")
            self.read(0.1)

    def read_for(self, seconds: float) -> None:
        """Draw for some time."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.read(left)

    def waiting(self) -> int:
        """Bytes that wait to be taken."""
        return int(struct.unpack("i", ioctl(self.master, termios.FIONREAD, b"\0\0\0\0"))[0])

    @property
    def text(self) -> str:
        """What is on the screen."""
        return "\n".join(self._screen.display)

    def cpu(self) -> float:
        """Seconds of processor the app has used, and the process that holds its connections.

        Without those that stand for ssh.
        """
        return measures.processor(self._ours())

    def memory(self) -> float:
        """MiB resident, of both."""
        return measures.memory(self._ours())

    def _ours(self) -> list[int]:
        children = [
            pid
            for task in Path(f"/proc/{self.process.pid}/task").iterdir()
            for pid in (task / "children").read_text().split()
        ]
        held = [
            one for one in children if b"attach.apart" in Path(f"/proc/{one}/cmdline").read_bytes()
        ]
        return [self.process.pid, *map(int, held)]


@contextmanager
def terminal(*argv: str) -> Iterator[Terminal]:
    """Start a command in a terminal; it is killed in the end."""
    master, slave = openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", SIZE[1], SIZE[0], 0, 0))
    left_out = {"TMUX", "COLORTERM", "PYTHONDONTWRITEBYTECODE"}
    environ = {key: value for key, value in os.environ.items() if key not in left_out}
    environ["TERM"] = "xterm-256color"
    began = time.monotonic()
    process = Popen(argv, stdin=slave, stdout=slave, stderr=slave, env=environ,
                    start_new_session=True)  # fmt: skip
    os.close(slave)
    try:
        yield Terminal(process, master, began)
    finally:
        # The keyboard's way out: the app ends its connections.
        os.write(master, b"q")
        until = time.monotonic() + 10
        while process.poll() is None and time.monotonic() < until:
            try:
                Terminal(process, master).read(0.1)
            except OSError:
                break
        process.kill()
        process.wait()
        os.close(master)


def press(shown: Terminal, seconds: float) -> list[float]:
    """Milliseconds from each of many keys to the first byte that comes back."""
    took: list[float] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until or len(took) < 20:
        shown.read_for(0.15)
        while shown.waiting():
            shown.read(0.0)
        down = len(took) % 20 < 10
        # The cursor stays on its rank, which may have been sorted to where that key does nothing.
        os.write(shown.master, b"j" if down != at_end(shown.text, down) else b"k")
        began = time.monotonic()
        shown.read(5.0)
        took.append((time.monotonic() - began) * 1000)
    return took


def at_end(text: str, down: bool) -> bool:
    """Whether the cursor of the last table on the screen is on its last row, or its first one."""
    lines = text.split("\n")
    borders = [(n, m) for n, line in enumerate(lines) if (m := SHOWN.search(line))]
    marks = [n for n, line in enumerate(lines) if "▸" in line]
    if not borders or not marks:
        return False
    border, found = borders[-1]
    first, last, of = map(int, found.groups())
    rows = last - first + 1
    return marks[-1] == (border - 1 if down else border - rows) and (
        last == of if down else first == 1
    )


def slowly(shown: Terminal, seconds: float) -> float:
    """Take bytes at `LINK_B` only, with a key now and then; return the most seconds behind."""
    behind, step = [0.0], 0.02
    began = time.monotonic()
    taken, credit, last, keyed = 0, 0.0, began, began
    while (now := time.monotonic()) - began < seconds:
        credit = min(credit + (now - last) * LINK_B, LINK_B * step * 2)
        last = now
        if credit >= 1:
            got = shown.read(0.0, int(credit))
            credit -= got
            taken += got
        behind.append(shown.waiting() / LINK_B)
        if now - keyed > 1.0:
            keyed = now
            os.write(shown.master, b"j")
        time.sleep(step)
    return max(behind)


def is_full(text: str, nodes: int, ranks: int) -> bool:
    """Whether the overview shows all ranks, and that all nodes answer."""
    return bool(
        re.search(rf" 1-\d+ of {ranks} ", text) and f" {nodes}/{nodes} nodes" in text.split("\n")[0]
    )


def main() -> None:
    """Print the lines of the table of figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("nodes", type=int, nargs="?", default=1024)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each part")
    options = parser.parse_args()
    ranks = options.nodes * 8
    fleet = str(Path(__file__).with_name("fleet.py"))
    for package in ("core", "tui"):
        compile_dir(Path(__file__).parents[1] / package, quiet=2)
    print(figures.HEAD)
    with terminal(sys.executable, "-c", PEER, str(ranks)) as peer:
        peer.read_until(lambda text: "1 ranks" in text)
        bare = press(peer, options.seconds)
    story = Story(nodes=options.nodes, hang_at=-1.0)
    argv = [sys.executable, fleet, str(options.nodes), "--tui", "--room"]
    with Fleet(story) as played, terminal(*argv, str(played.room)) as shown:
        before = measures.processor(played.pids())
        shown.read_until(lambda text: "hangtop" in text)
        began, opened = shown.began, time.monotonic()
        shown.read_until(lambda text: is_full(text, options.nodes, ranks))
        first, worked = time.monotonic() - began, shown.cpu()
        players = measures.processor(played.pids()) - before
        figures.row(
            f"{ranks:,} ranks: start to the first full overview",
            "2 s",
            f"{first:.1f} s, of which {opened - began:.1f} s to the first line; CPU of the app "
            f"{worked:.1f} s, of those who play the nodes {players:.1f} s",
        )
        shown.read_for(5.0)
        worked, began = shown.cpu(), time.monotonic()
        took = press(shown, options.seconds)
        busy = (shown.cpu() - worked) / (time.monotonic() - began)
        figures.row(
            "key, every row changing: p50, p90",
            "p90 50 ms",
            f"{statistics.median(took):.0f}, {figures.p90(took):.0f} ms",
            f"resting DataTable {statistics.median(bare):.0f}, {figures.p90(bare):.0f} ms, "
            f"{figures.p90(bare) / figures.p90(took):.1f}x",
        )
        figures.row("app and head meanwhile: CPU", "-", f"{busy:.1%}")
        late = slowly(shown, options.seconds)
        figures.row("link of 20 kB/s: at most behind", "0.2 s", f"{late:.2f} s")
        played.tell("hang")
        shown.read_until(lambda text: "missing-collective" in text)
        verdict = time.monotonic()
        for begin, end in REST_S:
            shown.read_for(verdict + begin - time.monotonic())
            cpu, began = shown.cpu(), time.monotonic()
            shown.read_for(verdict + end - began)
            rest = (shown.cpu() - cpu) / (time.monotonic() - began)
            what = f"app and head {begin:.0f} to {end:.0f} s after the verdict: CPU"
            figures.row(what, "1 %", f"{rest:.1%}")
        figures.row("app and head: memory", "500 MB", f"{shown.memory():.0f} MiB")
    figures.load()


if __name__ == "__main__":
    main()
