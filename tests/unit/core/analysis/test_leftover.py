"""Ranks that torchrun has started anew, and that wait for those of the attempt before."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from hangtop_core.model.descriptors import Descriptor, Socket
from hangtop_core.model.snapshot import DescriptorTable
from support.build import NOW, World, judged
from support.situations import BASE, FUTEX, INIT, MESH, Facts, Stack, c10d, frame
from support.verdicts import causes, first, printing, told

RECV: Facts = ("S", "wait_woken", "recvfrom", 3, None)
GROUP: Stack = (MESH[0], frame("new_group", "torch/distributed/distributed_c10d.py", 5800), *BASE)
REFUSED = "RuntimeError: Gloo connectFullMesh failed with [pair.cc:152] timed out connecting"


def env(rank: int, count: str = "2", shared: str = "True") -> dict[str, str]:
    told = {"RANK": str(rank), "WORLD_SIZE": "3", "MASTER_PORT": "29500"}
    torchrun = {"TORCHELASTIC_RESTART_COUNT": count, "TORCHELASTIC_USE_AGENT_STORE": shared}
    return told | {"MASTER_ADDR": "10.0.0.2", "TORCHELASTIC_RUN_ID": "x"} | torchrun


def sockets(rank: int, *peers: int, state: str = "ESTABLISHED") -> DescriptorTable:
    """What a rank has open: its listening socket, and one to each of these ranks."""
    found = [Socket("tcp", "LISTEN", f"10.0.0.2:{3000 + rank}", "0.0.0.0:0")]
    for peer in peers:
        local, there = f"10.0.0.2:{40 + rank}{peer}0", f"10.0.0.2:{40 + peer}{rank}0"
        found.append(Socket("tcp", state, local, there, peer_pid=4000 + peer * 10))
    numbered = enumerate(found, 3)
    return DescriptorTable(
        NOW, tuple(Descriptor(n, "socket", f"socket:[{n}]", socket=one) for n, one in numbered)
    )


def restarted(stack: Stack = MESH, facts: Facts = FUTEX, read: bool = True, **told: Any) -> World:
    """Three ranks in one place; ranks 0 and 1 are connected to nobody but rank 2."""
    world = World()
    for rank in range(3):
        table = sockets(rank, *((0, 1) if rank == 2 else (2,))) if read else None
        world.add(stack, facts, process={"env": env(rank, **told)}, descriptors=table)
    return world


def test_two_that_wait_for_each_other_to_connect() -> None:
    found = judged(restarted())
    assert first(found) == ("rendezvous-incomplete", [])
    assert len(found.verdicts) == 1
    verdict = found.verdicts[0]
    assert verdict.confidence == 0.88
    said = told(verdict)
    assert "ranks 0-1 are not connected, and neither tries" in said
    assert "TORCHELASTIC_RESTART_COUNT is 2" in said
    assert "rank 0" not in said.partition("listens on")[0].partition("ranks 0-2")[0]
    assert "listens on 10.0.0.2:3000 and is connected to rank 2, and tries" in said
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in verdict.next_steps[0]


def test_one_that_is_through_has_not_called_another_operation() -> None:
    world = restarted()
    world.ranks.pop()
    world.add(c10d("all_reduce"), FUTEX, process={"env": env(2)}, descriptors=sockets(2, 0, 1))
    found = judged(world)
    assert causes(found) == ["rendezvous-incomplete"]
    assert "ranks 0-1 wait in init_process_group" in found.verdicts[0].summary


def test_less_is_said_without_tables() -> None:
    verdict = judged(restarted(read=False)).verdicts[0]
    assert (verdict.cause, verdict.confidence) == ("rendezvous-incomplete", 0.7)
    assert "not connected" not in verdict.summary


def test_a_connection_to_who_knows_whom_may_be_one_of_them() -> None:
    world = restarted()
    away = Socket("tcp", "ESTABLISHED", "10.0.0.2:4999", "10.0.0.7:5000")
    table = world.ranks[0].descriptors
    assert table is not None
    more = (*table.descriptors, Descriptor(9, "socket", "socket:[9]", socket=away))
    world.ranks[0] = replace(world.ranks[0], descriptors=DescriptorTable(NOW, more))
    assert judged(world).verdicts[0].confidence == 0.7


def test_new_group_alike_and_nothing_is_said_of_pairs() -> None:
    verdict = judged(restarted(GROUP)).verdicts[0]
    assert (verdict.cause, verdict.confidence) == ("rendezvous-incomplete", 0.7)
    assert "wait in new_group" in verdict.summary


def test_a_group_that_a_rank_does_not_make_is_the_programs() -> None:
    world = restarted(GROUP)
    world.ranks.pop()
    world.add(c10d("all_reduce"), FUTEX, process={"env": env(2)})
    assert "rendezvous-incomplete" not in causes(judged(world))


@pytest.mark.parametrize(
    "world",
    [
        pytest.param(restarted(count="0"), id="the first attempt"),
        pytest.param(restarted(shared="False"), id="a store of its own"),
        pytest.param(restarted(facts=RECV), id="waits for an address in the store"),
        pytest.param(restarted(INIT), id="makes the store"),
    ],
)
def test_other_waits(world: World) -> None:
    assert "rendezvous-incomplete" not in causes(judged(world))


def test_who_tries_to_connect_shows_another_cause() -> None:
    world = restarted()
    world.ranks[1] = replace(world.ranks[1], descriptors=sockets(1, 0, state="SYN_SENT"))
    assert "rendezvous-incomplete" not in causes(judged(world))


def test_all_are_connected() -> None:
    world = restarted()
    for rank in range(3):
        others = [peer for peer in range(3) if peer != rank]
        world.ranks[rank] = replace(world.ranks[rank], descriptors=sockets(rank, *others))
    assert first(judged(world)) == ("unknown", [])


def test_what_the_attempt_before_printed_of_connections_is_not_of_this_one() -> None:
    assert causes(printing(restarted(), REFUSED)) == ["rendezvous-incomplete"]
    assert causes(printing(restarted(count="0"), REFUSED))[0] == "port-blocked"
