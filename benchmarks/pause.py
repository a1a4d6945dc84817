"""How long a rank stands still while hangtop takes its stacks, beside other ways to take them.

    PYTHONPATH=core:tui:tests:benchmarks python benchmarks/pause.py [--rounds N]

The rank is a Python process in which a C thread runs all the time and notes every gap of over 3 ms
in which it did not. In turn, nothing is done, a session of hangtop takes stacks (its default mode),
py-spy takes them in its own (blocking) mode, and with native frames. Printed are medians of the
milliseconds of all gaps of a round. Gaps of the first column are other things that run: only on a
machine with idle cores are they zero.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import figures
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.session.session import Options, Session
from hangtop_probe.node import node as probe_node

if TYPE_CHECKING:
    from collections.abc import Callable

TARGET = """
import ctypes, sys
lib = ctypes.CDLL(sys.argv[1])
lib.take.restype = ctypes.c_double
lib.start()
most = ctypes.c_double()
for line in sys.stdin:
    total = lib.take(ctypes.byref(most))
    print(total, most.value, flush=True)
"""
ROUND_S = 0.3
"""Seconds in which gaps are counted, each way and round."""


def main() -> None:
    """Print the line of the table of figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    spy = probe_node.find_py_spy()
    if spy is None:
        sys.exit("there is no py-spy")
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/pause.so"
        source = Path(__file__).with_name("pause.c")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-pthread", "-o", library, source],
                       check=True)  # fmt: skip
        environ = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0",
                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999"}  # fmt: skip
        target = subprocess.Popen([sys.executable, "-c", TARGET, library], env=environ, text=True,
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
        try:
            measure(target, spy, options.rounds)
        finally:
            target.kill()
            target.wait()


def measure(target: subprocess.Popen[str], spy: str, rounds: int) -> None:
    """Take stacks in all ways in turn."""
    pid = str(target.pid)
    with Session(Options(pids=(target.pid,), watch=True), diagnose) as session:
        seen = session.wait(lambda u: any(job.ranks for job in u.snapshot.jobs), 30.0)
        if seen is None:
            sys.exit("hangtop did not find the rank")

        def ours() -> None:
            (sampled,) = session.sample().result(20)
            if sampled.sample.failure is not None:
                sys.exit(f"no stack: {sampled.sample.failure.text}")

        ways: dict[str, Callable[[], object]] = {
            "nothing": lambda: None,
            "hangtop": ours,
            "py-spy dump": lambda: spied(spy, "--pid", pid),
            "py-spy dump --native": lambda: spied(spy, "--native", "--pid", pid),
        }
        gaps: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(rounds):
            for way, act in ways.items():
                gap(target)
                until = time.monotonic() + ROUND_S
                act()
                time.sleep(max(until - time.monotonic(), 0.0))
                gaps[way].append(gap(target))
    told = {way: statistics.median(some) for way, some in gaps.items()}
    print(figures.HEAD)
    figures.row(
        f"rank stands still for its stacks, median of {rounds}",
        "not measurable",
        f"{told['hangtop']:.1f} ms, {told['nothing']:.1f} ms when nothing is done",
        ", ".join(f"{way} {told[way]:.1f} ms" for way in list(ways)[2:]),
    )
    figures.load()


def gap(target: subprocess.Popen[str]) -> float:
    """Milliseconds of all gaps since the last call."""
    assert target.stdin is not None
    assert target.stdout is not None
    target.stdin.write("\n")
    target.stdin.flush()
    return float(target.stdout.readline().split()[0])


def spied(spy: str, *argv: str) -> None:
    """Run py-spy dump."""
    subprocess.run([spy, "dump", *argv], check=True, capture_output=True)


if __name__ == "__main__":
    main()
