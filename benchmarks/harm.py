"""What every command that touches a job does to its steps: percentiles with it and without.

    PYTHONPATH=core:tui:tests:benchmarks python benchmarks/harm.py [NAME ...] [--pairs N]

Two ranks of gloo go in lockstep, a step of about 53 ms: rank 0 sleeps, and both all_reduce. So a
rank that is held up shows in the steps of both. They are prepared as by `hangtop run`, so that
their recorders can be read. For each command windows with it and without it
take turns, which begins changes from pair to pair; what else the machine does is in both. Printed
are percentiles of a step over all windows, as "without / with", and the ratio of each.

A command that ends is started again until its window is over; C frames are taken once a window.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import figures

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

RANK = """
import sys, time
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
with open(sys.argv[1] + str(dist.get_rank()), "w", buffering=1) as out:
    while True:
        if dist.get_rank() == 0:
            time.sleep(0.05)
        dist.all_reduce(torch.ones(1024))
        out.write("%.4f\\n" % time.monotonic())
"""
START_S = 60.0
SETTLE_S = 0.5
"""Between two windows, for what the one before has started to be gone."""
LONGEST_S = 30.0
"""Of a window that waits for the end of its command."""


class Command(NamedTuple):
    """One way to look at a job."""

    name: str
    words: str
    """After `hangtop`; {pid} is that of rank 1, {file} a new file."""
    terminal: bool = False
    once: bool = False
    """Whether one run is a window, however long it takes."""


COMMANDS = (
    Command("screens at rest", "--pid {pid}", terminal=True),
    Command("watch", "watch --pid {pid}"),
    Command("diagnose", "diagnose --pid {pid}"),
    Command("diagnose --allow-pause", "diagnose --allow-pause --pid {pid}"),
    Command("dump", "dump --pid {pid}"),
    Command("dump --native", "dump --native --pid {pid}", once=True),
    Command("dump --locals", "dump --locals --pid {pid}"),
    Command("flight", "flight --pid {pid}"),
    Command("strace", "strace 1 --for 4 --pid {pid}", once=True),
    Command("files", "files 1 --pid {pid}"),
    Command("logs", "logs --pid {pid}"),
    Command("capture", "capture --observe 3 --pid {pid} -o {file}"),
    Command("doctor", "doctor"),
)


class Job(NamedTuple):
    """The two ranks, and where they note the times of their steps."""

    pids: tuple[int, int]
    steps: Path

    def between(self, begin: float, end: float) -> list[float]:
        """Milliseconds of the steps that ended within a time."""
        times = [float(line) for line in self.steps.read_text().split("\n")[:-1]]
        return [(b - a) * 1000 for a, b in pairwise(times) if begin < b <= end]


def main() -> None:
    """Measure what was named, or everything."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", metavar="NAME", help="a command, in quotes")
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=5.0, help="of a window")
    options = parser.parse_args()
    chosen = [one for one in COMMANDS if not options.names or one.name in options.names]
    print("| command | p50 ms | p90 ms | p99 ms | max ms | ratio p50, p99, max |")
    print("|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as job:
        for command in chosen:
            without, touched = measure(job, command, options.pairs, options.seconds, folder)
            print(line(command.name, without, touched), flush=True)
    figures.load()


@contextmanager
def running(folder: Path) -> Iterator[Job]:
    """Two ranks in lockstep."""
    script, steps = folder / "train.py", folder / "steps"
    script.write_text(RANK)
    port = str(20000 + os.getpid() % 10000)
    prepare = [sys.executable, "-m", "hangtop", "run", "--print-env", "--json", "--no-logs"]
    said = subprocess.check_output([*prepare, "--dir", f"{folder}/run"])
    prepared = {**os.environ, **json.loads(said)["environment"]}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(steps)],
            env={**prepared, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2",
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        job = Job((ranks[0].pid, ranks[1].pid), Path(f"{steps}0"))
        until = time.monotonic() + START_S
        while not (job.steps.exists() and job.steps.stat().st_size > 200):
            if time.monotonic() > until:
                sys.exit("the job did not start")
            time.sleep(0.2)
        yield job
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def measure(
    job: Job, command: Command, pairs: int, seconds: float, folder: str
) -> tuple[list[float], list[float]]:
    """Steps without and with a command, in windows by turns."""
    steps: dict[bool, list[float]] = {False: [], True: []}
    length = seconds
    for number in range(pairs):
        for touched in (True, False) if number % 2 else (False, True):
            time.sleep(SETTLE_S)
            begin = time.monotonic()
            if touched:
                touch(job, command, seconds, folder)
                length = time.monotonic() - begin
            else:
                time.sleep(length)
            steps[touched] += job.between(begin, time.monotonic())
    return steps[False], steps[True]


def touch(job: Job, command: Command, seconds: float, folder: str) -> None:
    """Run a command until the window is over, again where it ends before."""
    until = time.monotonic() + seconds
    while True:
        file = f"{folder}/{time.monotonic_ns()}.hangtop"
        words = command.words.format(pid=job.pids[1], file=file).split()
        limit = LONGEST_S if command.once else max(until - time.monotonic(), 0.1)
        run(words, limit, command.terminal)
        if command.once or time.monotonic() >= until:
            return


def run(words: Sequence[str], limit: float, terminal: bool) -> None:
    """Run hangtop, at most so long; where it wants a terminal, in one that is read."""
    ours, theirs = pty.openpty() if terminal else (-1, subprocess.DEVNULL)
    child = subprocess.Popen(
        [sys.executable, "-m", "hangtop", *words],
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "36"},
    )  # fmt: skip
    if terminal:
        os.close(theirs)
        threading.Thread(target=drain, args=(ours,), daemon=True).start()
    with suppress(subprocess.TimeoutExpired):
        child.wait(limit)
    child.send_signal(signal.SIGINT if not terminal else signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        child.wait(3)
    child.kill()
    child.wait()


def drain(end: int) -> None:
    """Read what comes out of a terminal, so that nobody waits to write."""
    with suppress(OSError):
        while os.read(end, 1 << 16):
            pass
    os.close(end)


def line(name: str, without: Sequence[float], touched: Sequence[float]) -> str:
    """One line of the table."""
    both = [(summary(without)[n], summary(touched)[n]) for n in range(4)]
    cells = [f"{a:.0f} / {b:.0f}" for a, b in both]
    ratios = ", ".join(f"{both[n][1] / both[n][0]:.2f}" for n in (0, 2, 3))
    return f"| `{name}` | {' | '.join(cells)} | {ratios} |"


def summary(steps: Sequence[float]) -> tuple[float, float, float, float]:
    """Return p50, p90, p99 and the longest."""
    cuts = statistics.quantiles(steps, n=100)
    return cuts[49], cuts[89], cuts[98], max(steps)


if __name__ == "__main__":
    main()
