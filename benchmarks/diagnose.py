"""What one short `hangtop diagnose` costs a node, beside one py-spy dump of each rank.

Starts a job of N ranks with M more threads each, and runs the command on it while it steps, and
again while one of its ranks is stopped:

    PYTHONPATH=core:tui:tests:benchmarks python benchmarks/diagnose.py 8 --threads 100

Printed are CPU seconds of the command with all it starts (probe, py-spy), which is what the job
loses; most of it is the start of Python, paid once and by the machine in front of you where the
nodes are others: `probe` is the part that runs on a node.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import NamedTuple

from figures import HEAD, load, row
from hangtop_probe.node import node as probe_node
from support.launch import torchrun
from support.processes import wait_until
from watch import below, spent, stepping

RUNS = 3


class Cost(NamedTuple):
    """What one command took."""

    cpu_s: float
    probe_s: float
    wall_s: float
    status: int


def cost(argv: list[str]) -> Cost:
    """Run a command to its end."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    null, probe = subprocess.DEVNULL, 0.0
    with subprocess.Popen(argv, stdin=null, stdout=null, stderr=null) as command:
        while command.poll() is None:
            probe = max(probe, spent(below(command.pid)).cpu_s)
            time.sleep(0.1)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(cpu, probe, time.monotonic() - began, command.returncode)


def middle(argv: list[str]) -> Cost:
    """Return the run of some with the middle CPU time."""
    return sorted(cost(argv) for _ in range(RUNS))[RUNS // 2]


def measure(options: argparse.Namespace) -> None:
    """Run the job, and the commands on it."""
    spy = probe_node.find_py_spy()
    if spy is None:
        sys.exit("there is no py-spy")
    with ExitStack() as stack:
        job = stack.enter_context(torchrun("crowded", str(options.threads), nproc=options.ranks))
        if not wait_until(lambda: stepping(job.pid, options.ranks), 300):
            sys.exit("the job did not start")
        ranks = below(job.pid)
        dumps = "for pid in $PIDS; do $SPY dump --nonblocking --pid $pid; done"
        peer = middle(["env", f"PIDS={' '.join(map(str, ranks))}", f"SPY={spy}", "sh", "-c", dumps])
        argv = [sys.executable, "-m", "hangtop", "diagnose", "--hang-after", "6", "--pid"]
        argv.append(str(job.pid))
        nothing = cost([sys.executable, "-m", "hangtop", "--version"])
        print(HEAD)
        tell("a job that steps", options, middle(argv), peer, 0)
        os.kill(ranks[1], signal.SIGSTOP)
        try:
            tell("a job that hangs", options, middle(argv), peer, 10)
        finally:
            os.kill(ranks[1], signal.SIGCONT)
        row("`hangtop --version`", "-", f"{nothing.cpu_s:.2f} s")
    load()


def tell(what: str, options: argparse.Namespace, found: Cost, peer: Cost, status: int) -> None:
    """Print one row; a run that came to something else measures nothing."""
    if found.status != status:
        sys.exit(f"{what}: status {found.status}")
    row(
        f"one `hangtop diagnose` of {what}, {options.ranks} ranks of {options.threads} threads",
        "-",
        f"{found.cpu_s:.2f} s in {found.wall_s:.0f} s, on the node {found.probe_s:.2f} s",
        f"py-spy once for each rank {peer.cpu_s:.2f} s",
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("ranks", type=int, nargs="?", default=8)
    parser.add_argument("--threads", type=int, default=100)
    measure(parser.parse_args())
