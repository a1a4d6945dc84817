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


def pods(nodes: Pair) -> None:
    """Both nodes have a way out; the second also runs pods, whose bridge is known only there."""
    for node in nodes.cluster.nodes:
        node.sh("ip route add default via 10.77.0.1")
    steps = (
        "link add cni0 type bridge",
        "addr add 10.42.0.1/24 dev cni0",
        "link set cni0 up",
        "link add vethpod0 type veth peer name vethpod1",  # else the bridge has no carrier
        "link set vethpod0 master cni0 up",
        "link set vethpod1 up",
    )
    nodes.cluster.node(2).sh(" && ".join(f"ip {step}" for step in steps))


def storage(nodes: Pair) -> None:
    """The second node has a fast card, too, whose network is that of its storage alone."""
    for node in nodes.cluster.nodes:
        node.sh("ip route add 10.40.0.0/16 via 10.77.0.1")
    steps = (
        "link add stor0 mtu 9000 type veth peer name stor1 mtu 9000",
        "addr add 10.40.0.2/24 dev stor0",
        "link set stor0 up",
        "link set stor1 up",
    )
    nodes.cluster.node(2).sh(" && ".join(f"ip {step}" for step in steps))


def silence(nodes: Pair) -> None:
    """From now on nothing gets from one node to the other; both can still be reached."""
    one, two = nodes.cluster.nodes
    for node, other in ((one, two), (two, one)):
        node.sh(f"iptables -A INPUT -s {other.address} -j DROP")


def unplug(nodes: Pair) -> None:
    """The second node is off the network."""
    nodes.cluster.unplug(2)


def wedge(nodes: Pair) -> None:
    """Nothing runs any more on the second node, though its network still answers."""
    nodes.cluster.node(2).freeze()


def power_off(nodes: Pair) -> None:
    """The second node is gone behind a router that says nothing of it."""
    nodes.cluster.node(2).sh(
        "iptables -A INPUT ! -i lo -j DROP; iptables -A OUTPUT ! -o lo -j DROP"
    )


def later_firewall(nodes: Pair) -> None:
    """The first node's firewall is turned on: what is open stays, new ones only to known ports."""
    rule = f"-p tcp --syn -m multiport ! --dports 22,{PORT} -j DROP"
    nodes.cluster.node(1).sh(f"iptables -A INPUT ! -i lo {rule}")


def oneway(nodes: Pair) -> None:
    """What the second node sends to others is lost, but for ssh and the store."""
    rule = f"-p tcp -m multiport ! --ports 22,{PORT} -j DROP"
    nodes.cluster.node(2).sh(f"iptables -A OUTPUT ! -o lo {rule}")


def big_frames(nodes: Pair) -> None:
    """Packets of more than 600 bytes get lost between the nodes, as with a wrong MTU; not ssh."""
    for node in nodes.cluster.nodes:
        rule = "-p tcp -m multiport ! --ports 22 -m length --length 600:65535 -j DROP"
        node.sh(f"iptables -A INPUT ! -i lo {rule}")


BEFORE: dict[str, Callable[[Pair], None]] = {
    "firewall": firewall,
    "wall_before_store": wall_before_store,
    "pods": pods,
    "storage": storage,
}
AFTER: dict[str, Callable[[Pair], None]] = {
    "silence": silence,
    "unplug": unplug,
    "wedge": wedge,
    "power_off": power_off,
    "later_firewall": later_firewall,
    "oneway": oneway,
    "big_frames": big_frames,
}
