"""Ranks that meet in the wrong place: interfaces of their own node, ports of other programs."""

from __future__ import annotations

import pytest

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.descriptors import Descriptor, Socket
from hangtop_core.model import DescriptorTable
from support.build import INIT, NOW, SLEEP, World, c10d


def table(*local: str) -> DescriptorTable:
    sockets = (Socket("tcp", "LISTEN", one, "0.0.0.0:0") for one in local)
    found = (Descriptor(fd, "socket", "socket", socket=one) for fd, one in enumerate(sockets, 7))
    return DescriptorTable(at=NOW, descriptors=tuple(found))


@pytest.mark.parametrize(
    ("variables", "local", "blamed"),
    [
        ({"GLOO_SOCKET_IFNAME": "docker0"}, ("172.17.0.1:40001",), [1]),
        ({"NCCL_SOCKET_IFNAME": "=lo"}, (), [1]),
        ({"GLOO_SOCKET_IFNAME": "lo,eth0"}, (), []),
        ({"NCCL_SOCKET_IFNAME": "^lo,docker0"}, (), []),
        ({}, ("127.0.1.1:40001",), [1]),
        ({}, ("127.0.0.1:29500",), []),
        ({}, ("127.0.1.1:40001", "10.0.0.2:40002"), []),
    ],
)
def test_interfaces(variables: dict[str, str], local: tuple[str, ...], blamed: list[int]) -> None:
    world = World()
    world.waiters(1, INIT, SLEEP, node="n1")
    env = {"MASTER_PORT": "29500", **variables}
    world.add(INIT, SLEEP, node="n2", process={"env": env}, descriptors=table(*local))
    snapshot = world.snapshot()
    first = diagnose(snapshot, snapshot.jobs[0]).verdicts[0]
    found = [one.rank for one in first.culprits] if first.cause == "wrong-interface" else []
    assert found == blamed


def test_it_counts_only_between_nodes_that_have_not_met() -> None:
    for node, stack in (("n1", INIT), ("n2", c10d("all_reduce"))):
        world = World()
        world.waiters(1, stack, SLEEP, node="n1")
        env = {"GLOO_SOCKET_IFNAME": "lo"}
        world.add(stack, SLEEP, node=node, process={"env": env})
        snapshot = world.snapshot()
        causes = {one.cause for one in diagnose(snapshot, snapshot.jobs[0]).verdicts}
        assert "wrong-interface" not in causes


@pytest.mark.parametrize(("pid", "taken"), [(77, True), (4010, False)])
def test_a_port_of_the_store_that_another_process_has(pid: int, taken: bool) -> None:
    world = World()
    env = {"MASTER_PORT": "29500", "RANK": "1"}
    socket = Socket("tcp", "ESTABLISHED", "127.0.0.1:4", "127.0.0.1:29500", 0, 0, 0, pid, "old")
    held = DescriptorTable(NOW, (Descriptor(3, "socket", "socket", socket=socket),))
    world.add(INIT, SLEEP, rank=1, process={"env": env}, descriptors=held)
    snapshot = world.snapshot(world_size=2, launcher=None)
    first = diagnose(snapshot, snapshot.jobs[0]).verdicts[0]
    assert first.cause == ("store-port-taken" if taken else "rank-never-joined")
    if taken:
        assert "29500, belongs to pid 77 (old) on n1" in first.summary
        assert first.culprits == ()
