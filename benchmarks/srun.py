"""Attach to N nodes of a Slurm job by one srun: py-spy by sbcast, by srun's input, and not at all.

Nodes are network namespaces of this machine with a slurmd each; all have these cores. Every round
starts sessions anew and waits until all nodes are ready; seconds are medians. Needs root and Slurm:

    PYTHONPATH=core:tui:tests:benchmarks python benchmarks/srun.py 16 32
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

import pynvml

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.attach.slurm import sbcast, srun
from hangtop_core.attach.slurm.slurm import SlurmJob, find_job
from hangtop_core.attach.ways.ssh import Login
from hangtop_core.session.session import Options, Session
from hangtop_probe.node import node as probe_node
from support.slurm import SlurmCluster, why_not

ROOT = Path(__file__).parents[1]
NEVER = 1 << 20
"""More nodes than there are: sbcast is not used."""


def attach(job: SlurmJob, by_sbcast: bool) -> float:
    """Attach to all nodes; return how many seconds it took until all were ready."""
    sbcast.NODES_FROM = 2 if by_sbcast else NEVER
    began = time.monotonic()
    launchers = srun.srun_launchers(job, Login(), job.nodes)
    with Session(Options(), diagnose, launchers) as session:
        update = session.wait(lambda u: all(n.state == "ready" for n in u.snapshot.nodes), 120)
        took = time.monotonic() - began
        carried = [one.outcome for one in session.commands if "sbcast" in one.what]
    if update is None:
        sys.exit("not all nodes became ready")
    if set(carried) - {"done"}:
        sys.exit(f"sbcast: {carried}")
    return took


def bare(job: SlurmJob) -> float:
    """Return the seconds of an srun that runs nothing but Python on all nodes."""
    count = f"{len(job.nodes)}"
    began = time.monotonic()
    argv = ["srun", "--overlap", f"--jobid={job.id}", "-N", count, "-n", count, "--gres=none"]
    subprocess.run([*argv, "python3", "-I", "-S", "-c", "pass"], check=True)
    return time.monotonic() - began


def measure(count: int, rounds: int) -> None:
    """Print one line for a job on so many nodes."""
    py_spy = probe_node.find_py_spy()
    assert py_spy is not None
    hidden = (str(ROOT / "core"), os.path.realpath(py_spy), os.path.realpath(pynvml.__file__))
    figures: dict[str, list[float]] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        SlurmCluster(Path(folder) / "c", count, hidden) as cluster,
    ):
        os.environ["PATH"] = f"{cluster.bin}:{os.environ['PATH']}"
        number = cluster.submit(f"-N{count}", "--ntasks-per-node=1", script="sleep 3600")
        cluster.wait_state(number, "RUNNING")
        job = find_job(number)
        for _ in range(rounds):
            for name, by_sbcast in (("sbcast", True), ("input", False)):
                for node in cluster.nodes:
                    node.sh("rm -rf /run/home/root/.cache/hangtop")
                figures.setdefault(name, []).append(attach(job, by_sbcast))
            figures.setdefault("warm", []).append(attach(job, False))
            figures.setdefault("bare srun", []).append(bare(job))
    middle = {name: statistics.median(some) for name, some in figures.items()}
    ratio = middle["input"] / middle["sbcast"]
    told = "  ".join(f"{name} {seconds:.2f}" for name, seconds in middle.items())
    print(f"{count:4} nodes  {told}  input/sbcast {ratio:.1f}x", flush=True)


def main() -> None:
    """Measure for each count of nodes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("counts", nargs="*", type=int, default=[4, 16], metavar="N")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    why = why_not()
    if why is not None:
        sys.exit(why)
    srun.SHARE_FROM = 2
    for count in options.counts:
        measure(count, options.rounds)


if __name__ == "__main__":
    main()
