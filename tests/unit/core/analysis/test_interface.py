"""Ranks that meet in the wrong place: interfaces of their own node, ports of other programs."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.model.descriptors import Descriptor, Socket
from hangtop_core.model.meters import Stalled
from hangtop_core.model.snapshot import DescriptorTable, Node
from support.build import NOW, World
from support.situations import INIT, SLEEP, c10d, frame


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


MEETS = (
    frame("_new_process_group_helper", "torch/distributed/distributed_c10d.py", 2169),
    *INIT[2:],
)
"""Past the store, in the first group."""
STORE = "10.0.0.1:29500"
TRIED = Stalled("10.0.0.1:55268", "10.40.0.2:36893", 0, 3, "SYN_SENT")


def connected(world: World, node: str, local: str, *tried: Stalled, read: bool = True) -> None:
    socket = Socket("tcp", "ESTABLISHED", f"{local}:4000", STORE)
    held = DescriptorTable(NOW, (Descriptor(3, "socket", "socket", socket=socket),))
    process = {"env": {"MASTER_PORT": "29500"}, "stalled": tried}
    world.add(MEETS, SLEEP, node=node, process=process, descriptors=held if read else None)


@pytest.mark.parametrize(
    ("tried", "cause"),
    [
        (TRIED, "wrong-interface"),
        (replace(TRIED, remote="10.0.0.2:36893"), "port-blocked"),  # the network of the store
        (replace(TRIED, local="10.40.0.1:55268"), "port-blocked"),  # both have the other network
        (replace(TRIED, remote="10.9.9.9:36893"), "port-blocked"),  # whose it is, nobody knows
    ],
)
@pytest.mark.parametrize("read", [True, False])
def test_an_address_of_a_network_that_the_others_do_not_have(
    tried: Stalled, cause: str, read: bool
) -> None:
    world = World()
    addresses = {"n1": ("10.0.0.1", "10.40.0.1"), "n2": ("10.0.0.2", "10.40.0.2")}
    for name, own in addresses.items():
        world.nodes[name] = Node(name, "ready", addresses=own, last_seen=NOW)
    connected(world, "n1", "10.0.0.1", tried)
    connected(world, "n2", "10.0.0.2", read=read)
    snapshot = world.snapshot()
    first = diagnose(snapshot, snapshot.jobs[0]).verdicts[0]
    assert (first.cause, [one.rank for one in first.culprits]) == (
        cause,
        [1] if cause == "wrong-interface" else [0],
    )
    if cause == "wrong-interface":
        assert (
            "over an interface that others do not reach: nothing answers at 10.40.0.2:36893 ("
            in (first.summary)
        )
        how = (
            "they reach the store from" if read else "their node is in the network of who tries as"
        )
        assert f"but {how} 10.0.0.2" in first.summary


@pytest.mark.parametrize(("stalled", "state"), [((TRIED,), "hung"), ((), "starting")])
def test_who_is_not_reached_by_its_interface_is_hung_as_soon_as_nothing_answers(
    stalled: tuple[Stalled, ...], state: str
) -> None:
    world = World(observed_since=NOW - 7)
    world.waiters(1, MEETS, SLEEP, node="n1", moved_at=NOW - 7, process={"stalled": stalled})
    env = {"GLOO_SOCKET_IFNAME": "docker0"}
    world.add(MEETS, SLEEP, node="n2", process={"env": env}, moved_at=NOW - 7)
    snapshot = world.snapshot()
    found = diagnose(snapshot, snapshot.jobs[0])
    assert (found.state, found.verdicts[0].cause) == (state, "wrong-interface")


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
