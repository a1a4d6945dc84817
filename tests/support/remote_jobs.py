"""Hung jobs on nodes of a cluster, by the launchers that people use."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from support.processes import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from support.cluster import Cluster

SCRIPT = Path(__file__).parent / "gloo_job.py"
SETTINGS = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}


@contextlib.contextmanager
def torchrun(cluster: Cluster, ranks: Mapping[int, int], what: str) -> Iterator[None]:
    """One torchrun on each node; ``ranks`` says how many ranks by the node's number."""
    settings = [f"{name}={value}" for name, value in SETTINGS.items()]
    with contextlib.ExitStack() as stack:
        for index, (number, count) in enumerate(ranks.items()):
            argv = cluster.node(number).argv(
                "env",
                *settings,
                sys.executable,
                "-m",
                "torch.distributed.run",
                f"--nnodes={len(ranks)}",
                f"--node-rank={index}",
                f"--nproc-per-node={count}",
                f"--master-addr={cluster.node(next(iter(ranks))).address}",
                "--master-port=29500",
                str(SCRIPT),
                what,
            )
            stack.enter_context(_started(argv))
            stack.callback(_kill, cluster, number, "[t]orch.distributed.run|[g]loo_job")
        yield


@contextlib.contextmanager
def on_node(cluster: Cluster, number: int, *argv: str, **environ: str) -> Iterator[None]:
    """One process on a node, a rank or a launcher: what its environment says it is."""
    told = [f"{name}={value}" for name, value in {**SETTINGS, **environ}.items()]
    with _started(cluster.node(number).argv("env", *told, sys.executable, *argv)):
        yield


@contextlib.contextmanager
def mpirun(cluster: Cluster, hostfile: Path, address: str, ranks: int) -> Iterator[None]:
    """Open MPI's mpirun, from the network that the nodes are on, by the cluster's ssh."""
    argv = cluster.at_head(
        *("mpirun", "--allow-run-as-root", "--hostfile", str(hostfile), "-np", str(ranks)),
        *("--mca", "oob_tcp_if_include", "10.77.0.0/16"),
        *(word for name in SETTINGS for word in ("-x", name)),
        *(sys.executable, str(SCRIPT), "mpi", address),
    )
    with contextlib.ExitStack() as stack:
        for number in range(1, len(cluster.nodes) + 1):
            stack.callback(_kill, cluster, number, "[o]rted|[g]loo_job.py mpi")
        stack.enter_context(_started(argv, SETTINGS))
        yield


@contextlib.contextmanager
def _started(argv: Sequence[str], settings: dict[str, str] | None = None) -> Iterator[None]:
    null = subprocess.DEVNULL
    env = {**os.environ, **(settings or {})}
    process = subprocess.Popen(argv, stdin=null, stdout=null, stderr=null, env=env)
    try:
        yield
    finally:
        process.kill()
        process.wait(PATIENCE)


def _kill(cluster: Cluster, number: int, pattern: str) -> None:
    cluster.node(number).sh(f"pkill -KILL -f '{pattern}' || true")
