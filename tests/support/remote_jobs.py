"""Hung jobs on nodes of a cluster, by the launchers that people use."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from support.launch import SUPPORT, Started

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from support.cluster import Cluster

SCRIPT = SUPPORT / "gloo_job.py"
SETTINGS = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}


@contextlib.contextmanager
def torchrun(cluster: Cluster, ranks: Mapping[int, int], what: str) -> Iterator[None]:
    """One torchrun on each node; ``ranks`` says how many ranks by the node's number."""
    with contextlib.ExitStack() as stack:
        for index, (number, count) in enumerate(ranks.items()):
            run = (
                *("-m", "torch.distributed.run", f"--nnodes={len(ranks)}", f"--node-rank={index}"),
                *(f"--nproc-per-node={count}", "--master-port=29500"),
                f"--master-addr={cluster.node(next(iter(ranks))).address}",
            )
            stack.enter_context(on_node(cluster, number, *run, str(SCRIPT), what))
        yield


def on_node(cluster: Cluster, number: int, *argv: str, **environ: str) -> Started:
    """A Python on a node, a rank or a launcher: what its environment says it is."""
    told = [f"{name}={value}" for name, value in {**SETTINGS, **environ}.items()]
    return Started(*cluster.node(number).argv("env", *told, sys.executable, *argv))


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
        for node in cluster.nodes:  # what ssh starts there has not our environment
            stack.callback(node.sh, "pkill -KILL -f '[o]rted|[g]loo_job.py mpi' || true")
        stack.enter_context(Started(*argv, env=SETTINGS))
        yield
