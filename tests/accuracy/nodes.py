"""Jobs over two nodes, which are namespaces of this machine: how they start and how they break."""

from __future__ import annotations

import shutil
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from support.cluster import Cluster, why_not
from support.launch import Started
from support.places import NoPlaceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from accuracy.job import Job

JOBS = Path(__file__).parent / "jobs"
PORT = "29500"


class Pair:
    """Two nodes with one job on them."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    @property
    def targets(self) -> list[str]:
        """What tells hangtop where the job is."""
        return ["-w", "node-[1-2]"]


@contextmanager
def pair(here: Path) -> Iterator[Pair]:
    """Two nodes."""
    reason = why_not()
    if reason is None and shutil.which("iptables") is None:
        reason = "firewalls need iptables (see .ci/system-packages)"
    if reason is not None:
        raise NoPlaceError(reason)
    with Cluster(here / "cluster", 2) as cluster:
        yield Pair(cluster)


def commands(job: Job, nodes: Pair) -> list[list[str]]:
    """What is started on each node: torchrun, or the ranks by themselves.

    ``job.ranks`` says how many per node, or, for ranks by themselves, the world size and which
    are on which node: `4 0,1/2,3`.
    """
    script, *arguments = job.command.split()
    program = [str(JOBS / script), *arguments]
    told = {
        "MASTER_ADDR": nodes.cluster.node(1).address,
        "MASTER_PORT": PORT,
        "GLOO_SOCKET_IFNAME": "eth0",
        "OUT_DIR": "/tmp",
        **dict(job.environment),
    }
    env = ["env", *(f"{name}={value}" for name, value in told.items())]
    python = sys.executable
    argvs = []
    world, _, ranks = job.ranks.partition(" ")
    for index, node in enumerate(nodes.cluster.nodes):
        argv = [
            *(python, "-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={index}"),
            *(f"--nproc-per-node={world}", f"--master-addr={told['MASTER_ADDR']}"),
            *(f"--master-port={PORT}", *program),
        ]
        if ranks:
            here = ranks.split("/")[index]
            argv = [python, str(JOBS / "each.py"), world, here, *program] if here else ["true"]
        argvs.append(node.argv(*env, *argv))
    return argvs


def start(job: Job, nodes: Pair, output: Path) -> list[Started]:
    """Start the job; every `Started` is to be entered."""
    env = {"PYTHONUNBUFFERED": "1"}
    return [Started(*argv, env=env, output=output) for argv in commands(job, nodes)]


def firewall(nodes: Pair) -> None:
    """Both nodes take connections to ssh and to the store, and to nothing else."""
    for node in nodes.cluster.nodes:
        rule = f"-p tcp --syn -m multiport ! --dports 22,{PORT} -j DROP"
        node.sh(f"iptables -A INPUT ! -i lo {rule}")


def wall_before_store(nodes: Pair) -> None:
    """The first node's store is behind a firewall that says nothing."""
    nodes.cluster.node(1).sh(f"iptables -A INPUT ! -i lo -p tcp --dport {PORT} -j DROP")


def silence(nodes: Pair) -> None:
    """From now on nothing gets from one node to the other; both can still be reached."""
    one, two = nodes.cluster.nodes
    for node, other in ((one, two), (two, one)):
        node.sh(f"iptables -A INPUT -s {other.address} -j DROP")


def unplug(nodes: Pair) -> None:
    """The second node is off the network."""
    nodes.cluster.unplug(2)


BEFORE: dict[str, Callable[[Pair], None]] = {
    "firewall": firewall,
    "wall_before_store": wall_before_store,
}
AFTER: dict[str, Callable[[Pair], None]] = {"silence": silence, "unplug": unplug}
