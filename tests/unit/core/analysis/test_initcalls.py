"""What ranks gave init_process_group and its store, where environments say something else."""

from __future__ import annotations

from typing import Any

import pytest

from hangtop_core.model.descriptors import Descriptor, Socket
from hangtop_core.model.snapshot import DescriptorTable, Thread
from support.build import NOW, World, judged
from support.situations import INIT, MESH, POLL, SLEEP, c10d, user
from support.verdicts import first

OWN = user("meet", 17, "store = dist.TCPStore(")
HOSTS = (Thread(9, "pt_tcpstore_uv", "S", "do_epoll_wait", "epoll_wait"),)


def told(rank: int, size: int, port: int | None = None) -> dict[str, Any]:
    env = {"RANK": str(rank), "WORLD_SIZE": "3", "MASTER_PORT": "29500"}
    return {"env": env, "told_rank": rank, "told_size": size, "told_port": port}


def store(port: int, *ranks: int) -> DescriptorTable:
    """Descriptors of rank 0, which hosts the store that some ranks, it among them, came to."""
    ends = [("LISTEN", f"[::]:{port}", "[::]:0", None)]
    ends += [("ESTABLISHED", f"127.0.0.1:{port}", f"127.0.0.1:{n}", 4000 + n * 10) for n in ranks]
    ends += [("ESTABLISHED", "127.0.0.1:0", f"127.0.0.1:{port}", 4000)]
    return DescriptorTable(
        NOW,
        tuple(
            Descriptor(fd, "socket", "socket:[1]", socket=Socket("tcp", *one[:3], peer_pid=one[3]))
            for fd, one in enumerate(ends, 10)
        ),
    )


@pytest.mark.parametrize(("stack", "port"), [(INIT, 29507), (OWN, None)])
def test_who_tries_again_to_connect_cannot_reach_the_store_and_its_host_is_a_victim(
    stack: Any, port: int | None
) -> None:
    world = World()
    mine = told(0, 3, port and 29500)
    world.add(stack, SLEEP, process={**mine, "threads": HOSTS}, descriptors=store(29500, 0, 1))
    world.add(MESH, POLL, process=told(1, 3))
    world.add(stack, SLEEP, process=told(2, 3, port))
    found = judged(world)
    assert first(found) == ("store-unreachable", [2])
    said = found.verdicts[0].summary
    assert "rank 0 has that of the others at port 29500" in said
    assert ("at port 29507" in said) == (port is not None)


def test_the_host_of_a_store_to_which_nobody_comes_was_told_another_port() -> None:
    world = World()
    world.add(INIT, SLEEP, process={**told(0, 3, 29507), "threads": HOSTS})
    for rank in (1, 2):
        world.add(INIT, SLEEP, process=told(rank, 3, 29500))
    found = judged(world)
    assert first(found) == ("store-unreachable", [0])
    assert "has the store at port 29507 for itself" in found.verdicts[0].summary


def test_nobody_is_blamed_for_trying_while_the_host_is_not_there_yet() -> None:
    world = World()
    world.add(user("load", 5, "time.sleep(600)"), SLEEP)
    for rank in (1, 2):
        world.add(INIT, SLEEP, process=told(rank, 3, 29500))
    assert first(judged(world)) == ("rank-never-joined", [0])


def test_an_old_torch_does_not_name_the_thread_of_the_store_and_rank_0_is_its_host() -> None:
    world = World()
    world.waiters(1, INIT, SLEEP)
    world.waiters(2, MESH, POLL)
    assert first(judged(world))[0] == "unknown"
    world.ranks.pop()
    world.add(INIT, SLEEP)
    assert first(judged(world)) == ("store-unreachable", [2])


def test_ranks_that_torchrun_started_and_that_meet_elsewhere() -> None:
    world = World()
    for rank in range(3):
        process = told(rank, 3, 29507)
        process["env"]["TORCHELASTIC_RUN_ID"] = "none"
        world.add(INIT, SLEEP, process=process)
    found = judged(world)
    assert first(found) == ("store-unreachable", [0, 1, 2])
    assert "were started by torchrun: it has one itself" in " ".join(
        map(str, found.verdicts[0].next_steps)
    )


@pytest.mark.parametrize(
    ("sizes", "blamed", "said"),
    [
        ((4, 4, 4), [], "world_size of init_process_group is 4 for ranks 0-2, and 3 ranks are"),
        ((3, 3, 4), [2], "differs: 4 (rank 2), 3 (ranks 0-1)"),
    ],
)
def test_a_world_size_that_was_not_started(
    sizes: tuple[int, ...], blamed: list[int], said: str
) -> None:
    world = World()
    for rank, size in enumerate(sizes):
        world.add(MESH, POLL, process=told(rank, size))
    found = judged(world)
    assert first(found) == ("launch-misconfigured", blamed)
    assert said in found.verdicts[0].summary
    assert ("there: rank 3 was not seen" in found.verdicts[0].summary) == (not blamed)


def test_who_waits_for_more_ranks_than_those_that_have_gone_on() -> None:
    world = World()
    world.waiters(2, c10d("all_reduce"), process=told(0, 3))
    world.add(MESH, POLL, process=told(2, 4))
    assert first(judged(world)) == ("launch-misconfigured", [2])


def test_one_rank_that_was_given_to_two() -> None:
    world = World()
    for rank, number in enumerate((0, 1, 1)):
        world.add(MESH, POLL, process={**told(rank, 3), "told_rank": number})
    found = judged(world)
    assert first(found) == ("launch-misconfigured", [2])
    assert "rank=1 by ranks 1-2, and by none with rank=2" in found.verdicts[0].summary


@pytest.mark.parametrize(("reached", "blamed"), [(True, [2]), (False, None)])
def test_what_does_not_answer_as_a_store(reached: bool, blamed: list[int] | None) -> None:
    world = World()
    host = {**told(0, 3, 29500), "threads": HOSTS if reached else ()}
    world.add(INIT, SLEEP, process=host)
    world.add(MESH if reached else INIT, POLL, process=told(1, 3))
    world.add(INIT, POLL, process=told(2, 3, 29507))
    found = judged(world)
    if blamed is None:
        assert first(found)[0] == "unknown"
        return
    assert first(found) == ("store-unreachable", blamed)
    assert "connected to something at port 29507" in found.verdicts[0].summary


@pytest.mark.parametrize(
    ("asking", "blamed", "said"), [(0, [0], ", and hosts the store that ranks 1-2"), (2, [2], "")]
)
def test_a_name_server_that_does_not_answer_while_stores_are_made(
    asking: int, blamed: list[int], said: str
) -> None:
    asked = Socket("udp", "ESTABLISHED", "10.0.0.1:59354", "10.0.0.53:53")
    table = DescriptorTable(NOW, (Descriptor(9, "socket", "socket:[7]", socket=asked),))
    world = World()
    for rank in range(3):
        threads = HOSTS if rank == 0 else ()
        held = table if rank == asking else None
        process = {**told(rank, 3, 29500), "threads": threads}
        world.add(INIT, POLL, process=process, descriptors=held)
    found = judged(world)
    assert first(found) == ("store-unreachable", blamed)
    text = f"has asked a name server (DNS), 10.0.0.53:53, which has not answered{said}"
    assert text in found.verdicts[0].summary


def test_smaller_worlds_of_their_own_are_no_mistake() -> None:
    world = World()
    for rank in range(4):
        world.add(MESH, POLL, process={"told_rank": rank % 2, "told_size": 2})
    assert first(judged(world))[0] == "unknown"
    for number in range(3):
        world.add(MESH, POLL, process={"told_rank": number, "told_size": 3})
    assert first(judged(world))[0] == "unknown"


@pytest.mark.parametrize(
    ("came", "cause", "blamed"),
    [((0, 1, 2), "launch-misconfigured", []), ((0, 1), "launch-misconfigured", [2])],
)
def test_a_store_that_waits_for_more(came: tuple[int, ...], cause: str, blamed: list[int]) -> None:
    world = World()
    world.add(OWN, SLEEP, process={"threads": HOSTS}, descriptors=store(29500, *came))
    world.waiters(2, MESH, POLL)
    found = judged(world)
    assert first(found) == (cause, blamed)
    words = "got through to another store" if blamed else "all 3 that were started are connected"
    assert words in found.verdicts[0].summary
