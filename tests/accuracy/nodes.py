"""Jobs over two nodes, which are namespaces of this machine: how they start and how they break."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from support.cluster import Cluster, why_not
from support.launch import Started
from support.places import NoPlaceError
from support.processes import environment, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from accuracy.job import Job
    from support.cluster import Node

JOBS = Path(__file__).parent / "jobs"
PORT = "29500"


class Pair:
    """Two nodes with one job on them."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.coordinator: subprocess.Popen[bytes] | None = None
        """A program beside the job that has its store."""

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
        nodes = Pair(cluster)
        try:
            yield nodes
        finally:
            if nodes.coordinator is not None:
                nodes.coordinator.kill()
                nodes.coordinator.wait()


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
        # Nodes may have files of their own where these have their compiled ones together.
        "PYTHONDONTWRITEBYTECODE": "1",
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


def _only_known_ports(node: Node) -> None:
    node.sh(f"iptables -A INPUT ! -i lo -p tcp --syn -m multiport ! --dports 22,{PORT} -j DROP")


def _flows(one: Node, two: Node) -> Iterator[tuple[str, str]]:
    """The connections between two nodes: the port of the first, the port of the second."""
    for line in one.sh(f"ss -Htn state established dst {two.address}").splitlines():
        ours, theirs = (end.rpartition(":")[2] for end in line.split()[2:4])
        yield ours, theirs


def _forget(one: Node, ours: str, two: Node, theirs: str) -> None:
    """From now on nothing passes on a connection between these ports."""
    for node, near, far in ((one, ours, theirs), (two, theirs, ours)):
        node.sh(f"iptables -A INPUT ! -i lo -p tcp --dport {near} --sport {far} -j DROP")


def firewall(nodes: Pair) -> None:
    """Both nodes take connections to ssh and to the store, and to nothing else."""
    for node in nodes.cluster.nodes:
        _only_known_ports(node)


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


def conn_limit(nodes: Pair) -> None:
    """The first node's firewall lets a host have four connections to other than known ports."""
    rule = f"-p tcp --syn -m multiport ! --dports 22,{PORT} -m connlimit --connlimit-above 4"
    nodes.cluster.node(1).sh(f"iptables -A INPUT ! -i lo {rule} -j DROP")


def storage_nic(nodes: Pair) -> None:
    """The second node has a storage network, too, which the first one is not on."""
    # The first node asks its router, as always; without a default route, or names are asked for.
    nodes.cluster.node(1).sh("ip route add 10.20.0.0/24 via 10.77.0.1")
    nodes.cluster.node(2).sh(
        "ip link add stor0 type veth peer name stor0-sw && ip link set stor0-sw up && "
        "ip addr add 10.20.0.12/24 dev stor0 && ip link set stor0 up"
    )


def coordinator(nodes: Pair) -> None:
    """A program on the login node, 10.77.0.1, has the store."""
    log = nodes.cluster.root / "coordinator.txt"
    script = JOBS / "kept/network/foreign_store.py"
    argv = nodes.cluster.at_head(sys.executable, str(script), "10.77.0.1", PORT)
    with log.open("wb") as out:
        nodes.coordinator = subprocess.Popen(argv, stdout=out, stderr=out)
    assert wait_until(lambda: b"serving" in log.read_bytes()), log.read_text()


def stale_name(nodes: Pair) -> None:
    """The name trainer-0 is the first node; the second one still has an old address for it."""
    nodes.cluster.node(1).sh("echo '10.77.0.2 trainer-0' >> /etc/hosts")
    nodes.cluster.node(2).sh("echo '10.77.0.99 trainer-0' >> /etc/hosts")


def wan(nodes: Pair) -> None:
    """Both nodes have a slow line to each other, wan0, besides eth0: 2 Mbit/s."""
    ip = nodes.cluster._ip
    for number, node in enumerate(nodes.cluster.nodes, 1):
        peer = ("peer", "name", "wan0", "netns", str(node.init))
        ip("link", "add", f"w{number}", "type", "veth", *peer)
    ip("link", "add", "leased", "type", "bridge")
    ip("link", "set", "leased", "up")
    for number, node in enumerate(nodes.cluster.nodes, 1):
        ip("link", "set", f"w{number}", "master", "leased", "up")
        node.sh(
            f"ip addr add 10.88.0.{number + 1}/24 dev wan0 && ip link set wan0 up && "
            "tc qdisc add dev wan0 root tbf rate 2mbit burst 32k latency 400ms"
        )


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
    _only_known_ports(nodes.cluster.node(1))


def oneway(nodes: Pair) -> None:
    """What the second node sends to others is lost, but for ssh and the store."""
    rule = f"-p tcp -m multiport ! --ports 22,{PORT} -j DROP"
    nodes.cluster.node(2).sh(f"iptables -A OUTPUT ! -o lo {rule}")


def big_frames(nodes: Pair) -> None:
    """Packets of more than 600 bytes get lost between the nodes, as with a wrong MTU; not ssh."""
    for node in nodes.cluster.nodes:
        rule = "-p tcp -m multiport ! --ports 22 -m length --length 600:65535 -j DROP"
        node.sh(f"iptables -A INPUT ! -i lo {rule}")


def nic_down(nodes: Pair) -> None:
    """The driver of the second node's card gave up: its interface is down, nothing is closed."""
    nodes.cluster.node(2).sh("ip link set eth0 down")


def forget_flows(nodes: Pair) -> None:
    """A firewall between the nodes forgot the connections that ranks have now; new ones work."""
    one, two = nodes.cluster.nodes
    for ours, theirs in _flows(one, two):
        if not {ours, theirs} & {"22", PORT}:
            _forget(one, ours, two, theirs)


def vpn(nodes: Pair) -> None:
    """Both nodes are clients of a VPN, tun0, whose server passes nothing from client to client."""
    for number, node in enumerate(nodes.cluster.nodes, 1):
        node.sh(
            "ip link add tun0 mtu 1420 type veth peer name server && ip link set tun0 arp off && "
            f"ip addr add 10.8.0.{4 * number + 2}/24 dev tun0 && ip link set tun0 up && "
            "ip link set server up"
        )


def no_route(nodes: Pair) -> None:
    """The second node has lost its route to the first: it knows the login node, and no more."""
    node = nodes.cluster.node(2)
    node.sh("ip route add 10.77.0.1/32 dev eth0 && ip route del 10.77.0.0/16")


def panic(nodes: Pair) -> None:
    """The second node's kernel gave up: nothing runs, nothing answers, not even the network."""
    wedge(nodes)
    unplug(nodes)


def evict(nodes: Pair) -> None:
    """The second node's part of the job, with its torchrun, is killed for a more urgent one."""
    for pid in nodes.cluster.node(2).pids():
        if "MASTER_PORT" in environment(pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def reboot(nodes: Pair) -> None:
    """The second node was reset and is up again, without the job: nobody told its peers."""
    two = nodes.cluster.node(2)
    for end in ("--sport", "--dport"):  # stateful firewalls drop what belongs to no flow
        two.sh(f"iptables -A OUTPUT ! -o lo -p tcp {end} {PORT} -j DROP")
        two.sh(f"iptables -A INPUT ! -i lo -p tcp {end} {PORT} -j DROP")
    forget_flows(nodes)
    for flag in ("FIN", "RST"):
        two.sh(f"iptables -A OUTPUT ! -o lo -p tcp ! --sport 22 --tcp-flags {flag} {flag} -j DROP")
    evict(nodes)


def dead_uplink(nodes: Pair) -> None:
    """One of the links that the switches share flows out over takes all it gets and passes nothing:
    of the connections between the nodes, those of ranks 1 and 2 are on it, others are not."""
    one, two = nodes.cluster.nodes
    near, far = _rank_ports(one), _rank_ports(two)
    for ours, theirs in _flows(one, two):
        if (near.get(ours), far.get(theirs)) == ("1", "2"):
            _forget(one, ours, two, theirs)


def _rank_ports(node: Node) -> dict[str, str]:
    """Which rank has a connection, by its port on the node."""
    held = {}
    for line in node.sh("ss -Htnp state established").splitlines():
        if (found := re.search(r"pid=(\d+)", line)) is None:
            continue
        environ = node.sh(f"tr '\\0' '\\n' </proc/{found[1]}/environ")  # its number there
        if (rank := re.search(r"^RANK=(\d+)$", environ, re.M)) is not None:
            held[line.split()[2].rpartition(":")[2]] = rank[1]
    return held


def suspend_coordinator(nodes: Pair) -> None:
    """Somebody pressed Ctrl-Z in the terminal of the program that has the store."""
    assert nodes.coordinator is not None
    nodes.coordinator.send_signal(signal.SIGSTOP)


def stale_route(nodes: Pair) -> None:
    """As `wan`, and the second node has an old route to the first, by a router that drops all."""
    wan(nodes)
    nodes.cluster.node(2).sh("ip route add 10.88.0.2/32 via 10.77.0.1 dev eth0")


def forget_store(nodes: Pair) -> None:
    """A firewall forgot what was open to the store: new connections work, so do those of ranks."""
    one, two = nodes.cluster.nodes
    for ours, theirs in _flows(two, one):
        if theirs == PORT:
            _forget(two, ours, one, theirs)


def fabric_off(nodes: Pair) -> None:
    """The switch took the second node's port of wan0 out of its VLAN: link up, nothing passes."""
    nodes.cluster._ip("link", "set", "w2", "nomaster")


def stale_neighbour(nodes: Pair) -> None:
    """The second node sends to a hardware address that the first one had before its repair."""
    one = nodes.cluster.node(1).address
    gone = f"ip neigh replace {one} lladdr 02:00:00:00:00:77 nud permanent dev eth0"
    nodes.cluster.node(2).sh(gone)


def older_torch(nodes: Pair) -> None:
    """The second node has an older torch, as far as that tells; a second one would be 200 MB."""
    import torch

    version = Path(torch.__file__).with_name("version.py")
    nodes.cluster.node(2).sh(
        f"sed 's/^__version__ = .*/__version__ = \"2.8.0\"/' {version} > /run/version.py; "
        f"mount --bind /run/version.py {version}"
    )


BEFORE: dict[str, Callable[[Pair], None]] = {
    "older_torch": older_torch,
    "firewall": firewall,
    "wall_before_store": wall_before_store,
    "pods": pods,
    "storage": storage,
    "conn_limit": conn_limit,
    "storage_nic": storage_nic,
    "coordinator": coordinator,
    "stale_name": stale_name,
    "wan": wan,
    "vpn": vpn,
    "no_route": no_route,
    "stale_route": stale_route,
}
AFTER: dict[str, Callable[[Pair], None]] = {
    "silence": silence,
    "unplug": unplug,
    "wedge": wedge,
    "power_off": power_off,
    "later_firewall": later_firewall,
    "oneway": oneway,
    "big_frames": big_frames,
    "nic_down": nic_down,
    "forget_flows": forget_flows,
    "panic": panic,
    "evict": evict,
    "reboot": reboot,
    "dead_uplink": dead_uplink,
    "suspend_coordinator": suspend_coordinator,
    "forget_store": forget_store,
    "fabric_off": fabric_off,
    "stale_neighbour": stale_neighbour,
}
