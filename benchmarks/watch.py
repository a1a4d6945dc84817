"""What `hangtop watch` takes while a job trains, beside a loop of py-spy that does the same.

Starts a job of N ranks that step for ever, then `hangtop watch` and the peer beside one another,
and prints CPU time as a share of one core, and resident memory, of each:

    python benchmarks/watch.py 8 --threads 100 --seconds 300

The peer is what people write without hangtop: every 5 s, and with --peer-every 30 as seldom as
hangtop takes stacks, `py-spy dump --nonblocking` of every rank. The start (Python, its modules, the
first look at all processes) is printed by itself: it is paid once.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import figures
from hangtop_probe.node import node as probe_node
from measures import TICKS
from support.launch import torchrun
from support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable

STARTED_S = 10.0
PEER = 'while sleep "$1"; do for pid in $PIDS; do "$SPY" dump --nonblocking --pid $pid; done; done'


class Spent(NamedTuple):
    """What processes have taken so far."""

    cpu_s: float
    rss: int
    """Bytes."""


def spent(pids: Iterable[int]) -> Spent:
    """Add up processes and those of their children that have ended, proc_pid_stat(5)."""
    cpu = rss = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        cpu += sum(map(int, fields[11:15]))
        rss += int(fields[21])
    return Spent(cpu / TICKS, rss * os.sysconf("SC_PAGE_SIZE"))


def below(pid: int) -> list[int]:
    """Return all descendants of a process that live."""
    found: list[int] = []
    todo = [pid]
    while todo:
        try:
            for thread in Path(f"/proc/{todo.pop()}/task").iterdir():
                children = [int(one) for one in (thread / "children").read_text().split()]
                found += children
                todo += children
        except OSError:
            continue
    return found


class Meter:
    """Reads head, probe and peer, and prints what they took since the last time."""

    def __init__(self, watch: int, peer: int) -> None:
        self.watch, self.peer = watch, peer
        self._at = time.monotonic()
        self._last = self._read()

    def _read(self) -> dict[str, Spent]:
        return {
            "head": spent([self.watch]),
            "probe": spent(below(self.watch)),
            "peer": spent([self.peer, *below(self.peer)]),
        }

    def tell(self, label: str, *, seconds: bool = False) -> dict[str, float]:
        """Print and return the shares of one core since the last time."""
        now, at = self._read(), time.monotonic()
        took = at - self._at
        used = {name: now[name].cpu_s - self._last[name].cpu_s for name in now}
        self._last, self._at = now, at
        if seconds:
            told = "  ".join(f"{name} {one:5.2f} s" for name, one in used.items())
            print(f"{label:12} {told}", flush=True)
            return used
        share = {name: one / took for name, one in used.items()}
        ours = share["head"] + share["probe"]
        told = "  ".join(f"{name} {one:6.2%}" for name, one in share.items())
        memory = "  ".join(f"{name} {now[name].rss / 2**20:.0f} MB" for name in ("head", "probe"))
        ratio = f"peer/hangtop {share['peer'] / ours:.1f}x" if ours else ""
        print(f"{label:12} {told}  hangtop {ours:6.2%}  {ratio}  {memory}", flush=True)
        return share


def measure(options: argparse.Namespace) -> None:
    """Run the job, the watcher and the peer."""
    kind = ("crowded", str(options.threads)) if options.threads else ("steps",)
    spy = probe_node.find_py_spy()
    assert spy is not None
    with ExitStack() as stack:
        job = stack.enter_context(torchrun(*kind, nproc=options.ranks))
        if not wait_until(lambda: stepping(job.pid, options.ranks), 120):
            sys.exit("the job did not start")
        ranks = below(job.pid)
        argv = [sys.executable, "-m", "hangtop", *options.command.split(), "--pid", str(job.pid)]
        null = subprocess.DEVNULL
        quiet = {"stdin": null, "stdout": null, "stderr": null}
        watch = subprocess.Popen(argv, **quiet)
        stack.callback(end, watch)
        peer = subprocess.Popen(
            ["sh", "-c", PEER, "peer", str(options.peer_every)],
            env={**os.environ, "SPY": spy, "PIDS": " ".join(map(str, ranks))},
            **quiet,
        )
        stack.callback(end, peer)
        meter = Meter(watch.pid, peer.pid)
        time.sleep(STARTED_S)
        meter.tell("start", seconds=True)
        part = options.seconds / options.parts
        parts = []
        for number in range(options.parts):
            time.sleep(part)
            parts.append(meter.tell(f"{number * part:.0f}-{(number + 1) * part:.0f} s"))
        share = {who: sum(one[who] for one in parts) / len(parts) for who in parts[0]}
        memory = spent(below(watch.pid)).rss / 2**20
        print(figures.HEAD)
        figures.row(
            f"probe, {options.ranks} ranks of {max(options.threads, 1)} threads",
            "1 % of a core, 40 MB",
            f"{share['probe']:.2%}, {memory:.0f} MiB (head {share['head']:.2%})",
            f"py-spy in a loop {share['peer']:.2%}, {share['peer'] / share['probe']:.1f}x",
        )
        figures.load()


def stepping(launcher: int, count: int) -> bool:
    """Whether all ranks below torchrun have joined: gloo has its thread in each by then."""
    ranks = below(launcher)
    return len(ranks) == count and all("gloo_tcp_loop" in threads(pid) for pid in ranks)


def threads(pid: int) -> set[str]:
    """Return the names of a process' threads."""
    return {one.read_text().strip() for one in Path(f"/proc/{pid}/task").glob("*/comm")}


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process that this benchmark started."""
    process.terminate()
    process.wait(20)


def main() -> None:
    """Measure once."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("ranks", nargs="?", type=int, default=4, metavar="N")
    parser.add_argument("--threads", type=int, default=0, help="more of them in every rank")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--parts", type=int, default=5, help="of that time, printed one by one")
    parser.add_argument("--peer-every", type=float, default=5.0, metavar="S")
    parser.add_argument("--command", default="watch", help="of hangtop, with its options")
    measure(parser.parse_args())


if __name__ == "__main__":
    main()
