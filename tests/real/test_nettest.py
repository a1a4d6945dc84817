"""`hangtop nettest` on nodes with real firewalls, wrong names and a second interface."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from hangtop_core.attach.ways import large_packets
from support.cluster import Cluster, why_not
from support.documents import misfits
from support.processes import PATIENCE, command_line, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.cluster import Node

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(why_not() is not None, reason=why_not() or ""),
]

PORT = 29517
LISTENS = f"ss -Hltn 'sport = :{PORT}'"
BEHIND_S = 600
FAULTY = f"""
#include <dlfcn.h>
#include <sys/socket.h>
#include <time.h>
extern "C" int clock_gettime(clockid_t id, struct timespec *now) {{
    static auto real = (int (*)(clockid_t, struct timespec *)) dlsym(RTLD_NEXT, "clock_gettime");
    int found = real(id, now);
    if (id == CLOCK_REALTIME) now->tv_sec -= {BEHIND_S};
    return found;
}}
extern "C" ssize_t recv(int fd, void *into, size_t size, int flags) {{
    static auto real = (ssize_t (*)(int, void *, size_t, int)) dlsym(RTLD_NEXT, "recv");
    ssize_t got = real(fd, into, size, flags);
    if (got > 900) ((char *) into)[got / 2] ^= 0x40;
    return got;
}}
"""
"""What makes a node's clock another (all namespaces share the machine's), and its network, by which
gloo receives with recv, one that changes a byte."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Nodes 1 and 2 have a second interface, in a network that leads nowhere."""
    with Cluster(tmp_path_factory.mktemp("nettest") / "c", 4) as cluster:
        for number in (1, 2):
            cluster.node(number).sh(
                f"ip link add data0 type veth peer data1; ip link set data1 up;"
                f"ip addr add 10.88.0.{number}/24 dev data0; ip link set data0 up"
            )
        yield cluster


def start(cluster: Cluster, *arguments: str) -> subprocess.Popen[str]:
    """Start the command as on a head node, with the cluster's ssh first on PATH."""
    options = ("--port", str(PORT), "--python", sys.executable)
    argv = cluster.at_head(sys.executable, "-m", "hangtop", "nettest", *options, *arguments)
    env = {**os.environ, "PATH": cluster.path}
    pipe = subprocess.PIPE
    return subprocess.Popen(argv, stdout=pipe, stderr=pipe, text=True, env=env)


def nettest(cluster: Cluster, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run it with --json to its end."""
    process = start(cluster, *arguments, "--json")
    try:
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait(PATIENCE)
    assert err == ""
    said = json.loads(out)
    assert said["schema"] == "hangtop.nettest/1"
    assert misfits(said) == []
    assert said["exit_status"] == process.returncode
    assert said["ok"] == (process.returncode == 0)
    return process.returncode, said


def told(said: dict[str, Any], cause: str) -> list[dict[str, Any]]:
    return [one for one in said["findings"] if one["cause"] == cause]


@contextlib.contextmanager
def hosts(node: Node, old: str, new: str) -> Iterator[None]:
    """A wrong line in a node's /etc/hosts, which is mounted: no new file may take its place."""
    node.sh(f"cp /etc/hosts /run/right; sed 's/{old}/{new}/' /run/right >/etc/hosts")
    try:
        yield
    finally:
        node.sh("cat /run/right >/etc/hosts")


@contextlib.contextmanager
def firewall(node: Node, *rules: str) -> Iterator[None]:
    try:
        for rule in rules:
            node.sh(f"iptables -A {rule}")
        yield
    finally:
        node.sh("iptables -F")


def ours(node: Node) -> list[str]:
    """What of a test is there on a node: its processes with torch, its probe, its port."""
    found = []
    for pid in node.pids():
        line = command_line(pid)
        if "nettest_rank" in line or "hangtop" in line:
            found.append(line[-100:])
    return found + node.sh(LISTENS).split("\n")[:-1]


def test_nodes_that_can_talk(cluster: Cluster) -> None:
    code, said = nettest(cluster, "-w", "node-[1-2]", "--size", "1")
    assert code == 0, said["findings"]
    nodes = {node["node"]: node for node in said["nodes"]}
    # Both are on two networks; the one counts to which their names lead.
    assert {name: node["tested_at"]["address"] for name, node in nodes.items()} == {
        f"node-{n}": f"10.77.0.{n + 1}" for n in (1, 2)
    }
    links = {link["name"]: link for link in nodes["node-1"]["interfaces"]}
    assert links["lo"]["kind"] == "loopback"
    assert links["data0"]["addresses"][0]["address"] == "10.88.0.1"
    assert nodes["node-1"]["sources"]["10.77.0.3"] == "10.77.0.2"
    # Both ways between every pair, on the chosen port and on any.
    ways = {(way["source"], way["target"], way["kind"]) for way in said["ways"]}
    assert len(ways) == len(said["ways"]) == 4
    assert {way["how"] for way in said["ways"]} == {"ok"}
    (job,) = said["jobs"]
    assert (job["backend"], job["forced"], len(job["outcomes"])) == ("gloo", False, 2)
    for outcome in job["outcomes"]:
        assert set(outcome["took"]) >= {"store", "init", "barrier", "all_reduce", "bandwidth"}
        assert outcome["rates"][0][1] > 1e6
        assert float.fromhex(outcome["numerics"]["powers"][9]) == pytest.approx(10**0.9)
    assert all(wait_until(lambda n=node: not ours(n)) for node in cluster.nodes)


def test_ports_that_are_blocked_and_names_that_mislead(cluster: Cluster) -> None:
    one, two, three, four = cluster.nodes
    holder = four.argv(
        sys.executable,
        "-c",
        f"import socket; s = socket.create_server(('', {PORT})); print(flush=True); s.accept()",
    )
    with (
        firewall(two, "INPUT -p tcp --syn ! --dport 22 -j DROP"),
        firewall(three, f"INPUT -p tcp --dport {PORT} -j REJECT"),
        firewall(one, f"INPUT -p tcp -s {four.address} -m length --length 1300:65535 -j DROP"),
        hosts(one, "10.77.0.4 node-3", "10.77.0.3 node-3"),
        subprocess.Popen(holder, stdout=subprocess.PIPE) as held,
    ):
        try:
            assert held.stdout is not None
            held.stdout.readline()
            code, said = nettest(cluster, "-w", "node-[1-4]", "--no-job", "--connect-limit", "1.5")
        finally:
            held.kill()
    assert code == 3
    assert {one["level"] for one in said["findings"]} == {"failure"}
    dropped, rejected = told(said, "port-blocked")
    assert dropped["nodes"] == ["node-2"]
    assert dropped["summary"] == "no other node reaches node-2 (10.77.0.3): its ports"
    assert "packets are dropped" in dropped["evidence"][0]
    # Without node-4, whose port is taken, two are left to reach node-3.
    assert rejected["nodes"] == ["node-3"]
    assert f"port {PORT}" in rejected["summary"]
    assert "REJECT" in rejected["evidence"][0]
    assert any("MASTER_PORT" in step for step in rejected["next_steps"])
    (large,) = told(said, "mtu-mismatch")
    assert large["summary"] == (
        "large packets from node-4 (10.77.0.5) to node-1 (10.77.0.2) get lost"
    )
    (name,) = told(said, "name-wrong")
    assert name["summary"] == (
        "node-1 takes node-3 to be 10.77.0.3, which is node-2's, not 10.77.0.4"
    )
    (taken,) = told(said, "store-port-taken")
    assert taken["nodes"] == ["node-4"]
    assert "create_server" in taken["summary"]


def test_an_interface_that_gloo_should_not_take(cluster: Cluster) -> None:
    two, three = cluster.nodes[1:3]
    with (
        hosts(two, "10.77.0.3 node-2", "127.0.1.1 node-2"),
        hosts(three, "10.77.0.4 node-3", "127.0.1.1 node-3"),
    ):
        code, said = nettest(cluster, "-w", "node-[2-3]", "--limit", "4", "--size", "1")
    assert code == 3
    wrong = told(said, "wrong-interface")[0]
    assert wrong["level"] == "failure"
    assert wrong["nodes"] == ["node-2", "node-3"]
    assert "works with GLOO_SOCKET_IFNAME=eth0" in wrong["summary"]
    first, second = said["jobs"]
    assert any(outcome["error"] for outcome in first["outcomes"])
    assert second["forced"]
    assert not any(outcome["error"] for outcome in second["outcomes"])


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_a_node_whose_clock_and_numbers_are_wrong(cluster: Cluster, tmp_path: Path) -> None:
    source, library = tmp_path / "faulty.cc", tmp_path / "faulty.so"
    source.write_text(FAULTY)
    subprocess.run(["g++", "-shared", "-fPIC", "-o", library, source], check=True)
    node = cluster.node(3)
    into = node.argv("bash", "-c", "cat >/run/faulty.so")
    subprocess.run(into, input=library.read_bytes(), check=True)
    init = "[ ! -e /run/faulty.so ] || export LD_PRELOAD=/run/faulty.so"
    code, said = nettest(cluster, "-w", "node-[1-3]", "--size", "1", "--init", init)
    assert code == 3
    (found,) = told(said, "clock-differs")
    assert (found["nodes"], found["summary"]) == (
        ["node-3"],
        "clocks differ: that of node-3 is 10:00 behind",
    )
    assert any("takes a node for dead" in one for one in found["evidence"])
    ahead = [node["clock"]["ahead"] for node in said["nodes"]]
    assert ahead == pytest.approx([0, 0, -BEHIND_S], abs=1.0)
    # A sum is wrong on all of them; it is jobs of two that tell whose fault it is.
    (found,) = told(said, "numbers-wrong")
    assert found["nodes"] == ["node-3"], said["pairs"]
    assert found["summary"].startswith("numbers come out wrong because of node-3 (10.77.0.4): ")
    assert found["evidence"][0] == "jobs of two nodes: 1 of 3 work"


@pytest.mark.parametrize("way", ["to", "from"])
def test_large_packets_that_get_lost_on_the_way_to_a_node(cluster: Cluster, way: str) -> None:
    # Longer than what ssh exchanges before it logs in; but for what this end says of itself.
    rule = "INPUT -p tcp -m length --length 1300:65535 -j DROP"
    node = cluster.node(2)
    wall = node.argv("iptables") if way == "to" else cluster.at_head("iptables")
    script = "head -c 5000 /dev/zero; sleep 1000"
    login = [str(cluster.bin / "ssh"), node.name, script]
    subprocess.run([*wall, "-A", *rule.split()], check=True)
    process = subprocess.Popen(login, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        told = {"to": large_packets.TO, "from": large_packets.FROM}[way]
        assert wait_until(lambda: large_packets.lost(process.pid, talking=False) == told)
    finally:
        process.kill()
        process.wait(PATIENCE)
        subprocess.run([*wall, "-F", "INPUT"], check=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_however_it_ends(cluster: Cluster, number: signal.Signals) -> None:
    one, two = cluster.nodes[:2]
    # GIVEN a test whose connections wait, and so its ports stay open
    with firewall(two, "INPUT -p tcp --syn ! --dport 22 -j DROP"):
        process = start(cluster, "-w", "node-[1-2]", "--no-job", "--connect-limit", "30")
        try:
            assert wait_until(lambda: bool(one.sh(LISTENS) and two.sh(LISTENS)))
            # Bound to the one address, and to no other.
            assert f"10.77.0.2:{PORT}" in one.sh(LISTENS)
            process.send_signal(number)
            out, _ = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
            process.wait(PATIENCE)
    assert process.returncode == (130 if number != signal.SIGKILL else -signal.SIGKILL)
    assert number == signal.SIGKILL or out.startswith("INTERRUPTED")
    assert wait_until(lambda: not ours(one) and not ours(two)), (ours(one), ours(two))


def test_processes_with_torch_end_with_it(cluster: Cluster) -> None:
    one = cluster.node(1)
    process = start(cluster, "-w", "node-1")
    try:
        assert wait_until(lambda: any("nettest_rank" in line for line in ours(one)))
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE)
    assert wait_until(lambda: not ours(one)), ours(one)


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="there is no mpirun")
def test_the_line_for_mpirun_runs_the_same_job(cluster: Cluster) -> None:
    process = start(cluster, "-w", "node-[1-2]", "--print-mpirun")
    line, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    mpirun, *words = shlex.split(line)
    here = ("--allow-run-as-root",)  # without which root may not
    env = {**os.environ, "PATH": cluster.path}
    argv = cluster.at_head(mpirun, *here, *words)
    done = subprocess.run(
        argv, capture_output=True, text=True, env=env, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    told = sorted(line.partition(",")[0] for line in done.stdout.splitlines())
    assert told == [f"node-{n} rank {n - 1} of 2: ok by gloo" for n in (1, 2)]
