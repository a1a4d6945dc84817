"""Stores that do not answer, and those that ranks look for where they are not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.logs.judging.wording import subject
from hangtop_core.model.descriptors import Descriptor, Socket
from hangtop_core.model.meters import Meters, Stalled
from hangtop_core.model.output import Output
from hangtop_core.model.snapshot import DescriptorTable, Node, Thread
from hangtop_core.state.outputs import parse
from support.build import NOW, World, judged
from support.situations import INIT, MESH, POLL, RECVFROM, RUN, SLEEP, inside, user
from support.verdicts import causes, first, printing

NOWHERE = {"MASTER_ADDR": "", "MASTER_PORT": ""}
HOSTS = (Thread(9, "pt_tcpstore_uv", "S", "do_epoll_wait", "epoll_wait"),)
RECV = ("S", "wait_woken", "recvfrom", 3, None)
ADD = user("arrived", 28, 'return self.store.add(f"{tag}/parts", 1)')
WAIT = user("arrived", 30, 'self.store.wait(["parts"])')
SPIN = user("arrived", 30, "while store.add(key, 0) < int(store.get(size)):")


def env(rank: int, address: str = "10.0.0.9") -> dict[str, str]:
    return {"RANK": str(rank), "MASTER_ADDR": address, "MASTER_PORT": "29500", "WORLD_SIZE": "3"}


def to(remote: str, state: str = "ESTABLISHED", local: str = "10.0.0.2:4711") -> DescriptorTable:
    socket = Socket("tcp", state, local, remote)
    return DescriptorTable(NOW, (Descriptor(3, "socket", "socket:[1]", socket=socket),))


def asking(stack: Any, slept: float | None, **fields: Any) -> World:
    world = World()
    for rank in range(3):
        process = {"env": env(rank), "meters": Meters(main_last_ran_s=slept), **fields}
        ran_at = NOW - slept if slept is not None else None
        table = to("10.0.0.9:29500")
        world.add(stack, RECV, process=process, descriptors=table, moved_at=ran_at)
    return world


def test_a_store_that_does_not_answer_what_it_answers_at_once() -> None:
    found = judged(asking(ADD, 40.0), launcher=None)
    assert first(found) == ("store-dead", [])
    said = found.verdicts[0].summary
    assert "the store at 10.0.0.9:29500, which no rank has and whose host is not observed," in said
    assert "ranks 0-2 sleep in add" in said
    assert "and the connection stands" in said
    assert "hangtop -H 10.0.0.9" in " ".join(map(str, found.verdicts[0].next_steps))


@pytest.mark.parametrize(("port", "dead"), [(29500, True), (6379, False)])
def test_a_store_by_another_name_is_known_by_its_connection(port: int, dead: bool) -> None:
    world = World()
    for rank in range(3):
        process = {"env": env(rank), "meters": Meters(main_last_ran_s=40.0)}
        table, stack = to(f"10.0.0.9:{port}"), user("note", 9, 'kv.add("beat", 1)')
        world.add(stack, RECV, process=process, descriptors=table, moved_at=NOW - 40.0)
    assert (first(judged(world, launcher=None))[0] == "store-dead") == dead


def test_some_who_ask_are_enough_where_all_others_wait_for_ranks() -> None:
    world = asking(ADD, 40.0)
    world.ranks.pop()
    world.waiters(1)
    found = judged(world, launcher=None)
    assert first(found) == ("store-dead", [])
    assert found.verdicts[0].confidence == 0.85


def test_what_a_store_answers_at_once_is_no_wait_for_a_key() -> None:
    for stack, said in ((ADD, "for an answer of the store"), (WAIT, "for a key in the store")):
        world = asking(stack, 40.0)
        world.waiters(4)
        summary = str(judged(world, launcher=None).verdicts)
        assert said in summary
        assert ("for a key in the store" in summary) == (stack is WAIT)


def test_who_asks_again_and_again_gets_answers() -> None:
    found = judged(asking(ADD, 0.1), launcher=None)
    assert found.verdicts[0].confidence < 0.5


@pytest.mark.parametrize("stack", [WAIT, SPIN])
def test_keys_that_nobody_sets_look_alike(stack: Any) -> None:
    found = judged(asking(stack, 40.0), launcher=None)
    assert first(found) == ("store-dead", [])
    assert found.verdicts[0].confidence == 0.4
    assert "or what should set the keys there does not" in found.verdicts[0].summary


def test_keys_in_a_store_that_a_rank_has() -> None:
    world = asking(WAIT, 40.0, threads=HOSTS)
    assert first(judged(world, launcher=None)) == ("unknown", [])


def test_the_host_of_the_store_is_observed() -> None:
    world = asking(WAIT, 40.0)
    world.nodes["n9"] = Node("n9", "ready", addresses=("10.0.0.9",))
    assert first(judged(world, launcher=None)) == ("unknown", [])


def test_a_rank_that_is_elsewhere_may_be_to_set_the_key() -> None:
    world = asking(WAIT, 40.0)
    world.add(user("load", 5, "time.sleep(600)"), POLL, process={"env": env(3)})
    assert first(judged(world, launcher=None))[0] != "store-dead"


def named(unread: bool = False, **fields: Any) -> World:
    """Ranks 2-3 on n2 have another address for the name of the store than those on n1."""
    world = World()
    for rank in range(4):
        told = env(rank, "trainer-0") | {"WORLD_SIZE": "4"}
        process = {"env": told, "threads": () if rank else HOSTS}
        there = "10.0.0.9:29500" if rank > 1 else "10.0.0.2:29500"
        state = "SYN_SENT" if rank > 1 else "ESTABLISHED"
        table = None if unread and rank == 3 else to(there, state)
        stack = INIT if rank > 1 else MESH
        more = {"moved_at": NOW - 3.0} if rank > 1 else {}
        node = "n2" if rank > 1 else "n1"
        world.add(stack, POLL, node=node, process=process, descriptors=table, **more)
    world.nodes["n1"] = Node("n1", "ready", addresses=("10.0.0.2",))
    world.nodes["n2"] = Node("n2", "ready", addresses=("10.0.0.3",))
    return world


@pytest.mark.parametrize("unread", [False, True])
def test_a_name_that_means_another_address_on_one_node(unread: bool) -> None:
    found = judged(named(unread))
    assert first(found) == ("store-unreachable", [2, 3])
    said = found.verdicts[0].summary
    assert "ranks 2-3 cannot reach the store at 10.0.0.9:29500" in said
    assert "rank 0 has it on n1 (connected to 10.0.0.2), which does not have that address" in said
    assert "on n2 the name trainer-0 most likely means an old or wrong one" in said
    assert found.verdicts[0].next_steps[0].endswith("getent ahosts trainer-0")


def test_the_address_is_right_and_nothing_answers() -> None:
    world = named()
    world.nodes["n1"] = Node("n1", "ready", addresses=("10.0.0.2", "10.0.0.9"))
    said = judged(world).verdicts[0].summary
    assert "a firewall drops what is sent there" in said
    assert "rank 0 has a store on n1" in said
    assert "it is down" not in said


def test_where_others_are_connected_to_it_the_store_is_not_down() -> None:
    world = named()
    for rank in (2, 3):
        table = to("10.0.0.2:29500", "SYN_SENT", "10.77.0.3:5000")
        world.ranks[rank] = replace(world.ranks[rank], descriptors=table)
    world.nodes["n2"] = Node("n2", "ready", addresses=("10.77.0.3", "10.0.0.3"))
    verdict = judged(world).verdicts[0]
    assert (verdict.cause, [c.rank for c in verdict.culprits]) == ("store-unreachable", [2, 3])
    assert "ranks 0-1 are connected to it, so most likely a firewall" in verdict.summary
    assert "it is tried from 10.77.0.3, although n2 also has 10.0.0.3" in verdict.summary
    assert "it is down" not in verdict.summary
    assert any(step.endswith("ip route get 10.0.0.2") for step in verdict.next_steps)


def test_between_two_attempts_the_name_is_told_too() -> None:
    world = World()
    for rank in range(3):
        process = {"env": env(rank, "trainer-0"), "told_port": 29500}
        listens = to("[::]:0", "LISTEN", "[::]:29500") if not rank else None
        process |= {"threads": HOSTS} if not rank else {}
        stack, node = (INIT, "n2") if rank == 2 else (INIT if not rank else MESH, "n1")
        facts = SLEEP if rank == 2 else POLL
        world.add(stack, facts, node=node, process=process, descriptors=listens)
    found = judged(world)
    assert first(found) == ("store-unreachable", [2])
    said = found.verdicts[0].summary
    assert "cannot reach its store at trainer-0:29500" in said
    assert "on n2 the name trainer-0 may mean another address than on n1" in said
    assert "nobody answers" not in said


@pytest.mark.parametrize("ago", [1.0, 6000.0])
def test_that_there_is_no_way_is_told_where_it_is_printed(ago: float) -> None:
    world = World()
    for rank in range(3):
        log = {"outputs": (f"/logs/{rank}",), "env": env(rank)}
        world.add(MESH if rank < 2 else INIT, SLEEP if rank == 2 else POLL, process=log)
    line = "[c10d] The client socket has failed to connect to 10.0.0.9:29500 (errno: {})."
    text = "\n".join([line.format("113 - No route to host"), *[f"frame #{n}:" for n in range(20)]])
    snapshot, log = world.snapshot(), parse("n1", "/logs/2", text, 0, len(text), NOW)
    one = Output("n1", "1:2", "/logs/2", (), NOW, len(text), NOW - ago, 0, text, log)
    snapshot = replace(snapshot, outputs=(one,))
    found = diagnose(snapshot, snapshot.jobs[0])
    assert first(found) == ("store-unreachable", [2])
    said = found.verdicts[0].summary
    assert ("which fails: No route to host, as is printed" in said) == (ago == 1.0)
    assert ("in vain" in said) == (ago > 1.0)


def test_who_sleeps_between_two_attempts_beside_one_that_tries_is_one_of_them() -> None:
    world = named(unread=True)
    world.ranks[3] = replace(world.ranks[3], descriptors=DescriptorTable(NOW))
    found = judged(world)
    assert [(v.cause, [c.rank for c in v.culprits]) for v in found.verdicts] == [
        ("store-unreachable", [2, 3])
    ]


@pytest.mark.parametrize(
    ("count", "shared", "told"),
    [("0", "True", False), ("2", "True", True), ("2", "False", False)],
)
def test_what_an_earlier_attempt_may_have_left(count: str, shared: str, told: bool) -> None:
    world = World()
    for rank in range(3):
        mine = env(rank) | {"TORCHELASTIC_RESTART_COUNT": count, "TORCHELASTIC_RUN_ID": "x"}
        mine |= {"TORCHELASTIC_USE_AGENT_STORE": shared}
        world.add(MESH, POLL, process={"env": mine})
    found = judged(world)
    assert first(found) == ("unknown", [])
    assert ("TORCHELASTIC_RESTART_COUNT is 2" in found.verdicts[0].summary) == told


def test_what_several_nodes_have_printed_is_of_several_processes() -> None:
    record = SimpleNamespace(origin=SimpleNamespace(local=None), code="T6")
    fold: Any = SimpleNamespace(nodes=("n1", "n2"), ranks=(), members=(record,), record=record)
    assert subject(fold) == "processes (n1, n2)"


LOST = (
    "[W0115 07:55:39.432585335 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=4, "
    "addr=[::ffff:127.0.0.1]:43822, remote=[::ffff:127.0.0.1]:29500): Failed to recv, got 0 bytes. "
    "Connection was likely closed. Did the remote server shutdown or crash?"
)
RESET = LOST.partition("Failed")[0] + "Connection reset by peer"
CLOSED = (
    "[W0115 07:55:39.500000000 TCPStore.cpp:340] [c10d] TCP client failed to connect/validate to "
    "host n1:29500 - retrying (try=0, timeout=9000ms, delay=434ms): Connection reset by peer"
)
CONNECT = user("connect", 35, "return dist.TCPStore(*ADDRESS, None, host, timeout=PATIENCE)")


@pytest.mark.parametrize(
    ("lines", "hosts", "cause"),
    [
        ((LOST,), False, "store-dead"),
        ((RESET,), False, "store-dead"),
        ((RESET, CLOSED), False, "store-unreachable"),  # what closes them at once is no store
        ((), False, "store-unreachable"),  # nobody ever had it, for what is known
        ((LOST,), True, "store-unreachable"),  # one has it again
    ],
)
def test_a_store_that_ranks_had_and_lost(lines: tuple[str, ...], hosts: bool, cause: str) -> None:
    world = World()
    for rank in range(3):
        process = {"env": env(rank), "versions": {"torch": "2.13.0+cpu"}}
        process |= {"threads": HOSTS} if hosts and not rank else {}
        world.add(CONNECT, SLEEP, process=process)
    found = printing(world, *lines, launcher=None, master="n1:29500")
    assert causes(found) == [cause]
    if cause == "store-dead":
        assert "the store at n1:29500 is gone:" in found.verdicts[0].summary
        assert "All ranks of the job try again and again" in found.verdicts[0].summary


@pytest.mark.parametrize(
    ("version", "tries"), [("2.13.0+cpu", [0, 1, 2]), ("2.4.1", [1, 2]), ("", [1, 2])]
)
def test_who_hosts_a_store_is_seen_where_torch_names_its_thread(
    version: str, tries: list[int]
) -> None:
    world = World()
    for rank in range(3):
        process = {"env": env(rank), "versions": {"torch": version} if version else {}}
        world.add(CONNECT, SLEEP, process=process)
    assert first(judged(world, launcher=None)) == ("store-unreachable", tries)


@pytest.mark.parametrize(
    ("pid", "host_too", "taken"), [(77, False, True), (4000, False, False), (77, True, False)]
)
@pytest.mark.parametrize("told", [True, False])
def test_a_rank_that_took_another_port_as_a_stranger_has_that_of_the_store(
    pid: int, host_too: bool, taken: bool, told: bool
) -> None:
    # Whose port a program has from elsewhere is known by frames of torch.
    def fields(rank: int) -> dict[str, Any]:
        return {"env": env(rank)} if told else {"env": {**env(rank), **NOWHERE}, "told_port": 29500}

    def held(remote: str, owner: int, local: str = "127.0.0.1:4") -> Descriptor:
        socket = Socket("tcp", "ESTABLISHED", local, remote, 0, 0, 0, owner, "hub")
        return Descriptor(3, "socket", "socket:[1]", socket=socket)

    world = World()
    listens = Descriptor(
        5, "socket", "socket:[2]", socket=Socket("tcp", "LISTEN", "127.0.0.1:29501", "0.0.0.0:0")
    )
    own = (listens, held("127.0.0.1:29501", 4000))
    own += (held("127.0.0.1:29500", pid),) if host_too else ()
    process = {**fields(0), "threads": HOSTS}
    world.add(CONNECT, SLEEP, process=process, descriptors=DescriptorTable(NOW, own))
    for rank in (1, 2):
        table = DescriptorTable(NOW, (held("127.0.0.1:29500", pid),))
        world.add(MESH, POLL, process=fields(rank), descriptors=table)
    found = judged(world, launcher=None)
    assert (causes(found)[0] == "store-port-taken") == taken
    if taken:
        said = found.verdicts[0].summary
        assert "the port of the store, 29500, belongs to pid 77 (hub) on n1" in said
        assert "rank 0 has the store at port 29501, and waits there for the others" in said


def test_who_waits_for_a_word_of_a_stranger_is_told_once() -> None:
    far = Socket("tcp", "ESTABLISHED", "127.0.0.1:4", "127.0.0.1:29500", 0, 0, 0, 77, "hub")
    table = DescriptorTable(NOW, (Descriptor(3, "socket", "socket:[1]", socket=far),))
    world = World()
    world.add(CONNECT, SLEEP, process={"env": env(0), "threads": HOSTS})
    for rank in (1, 2):
        world.add(CONNECT, RECV, process={"env": env(rank)}, descriptors=table)
    assert causes(judged(world, launcher=None)) == ["store-port-taken"]


def test_a_store_of_a_port_that_only_the_program_knows_has_closed() -> None:
    world = World()
    gone = Stalled("10.0.0.2:5", "10.0.0.1:38501", 0, 0, "CLOSE_WAIT")
    for rank in range(3):
        told = {"env": {**env(rank), **NOWHERE}, "told_port": 38501, "stalled": (gone,)}
        world.add(MESH, POLL, process=told)
    assert first(judged(world, launcher=None)) == ("store-dead", [])


POLLS = inside(
    user("arrive", 22, "time.sleep(0.25)"), (21, "while self.store.add(f'roll/{name}', 0) < size:")
)
REMOTE = user("fetch", 29, "conn.recv(100)")


def test_who_looks_into_the_store_again_and_again_waits_for_others() -> None:
    world = World()
    for rank in (0, 1):
        world.add(POLLS, SLEEP, process={"env": env(rank)})
    world.add(REMOTE, RECVFROM, process={"env": env(2)})
    found = judged(world, launcher=None)
    assert (found.state, first(found)) == ("hung", ("remote-service-wait", [2]))
    assert "ranks 0-1 wait for a key in the store" in found.verdicts[0].summary


def test_where_all_look_into_the_store_they_may_be_idle() -> None:
    world = World()
    for rank in range(3):
        world.add(POLLS, SLEEP, process={"env": env(rank)}, moved_at=NOW - 0.2)
    assert judged(world, launcher=None).state != "hung"


def test_keys_that_nobody_sets_are_told_of() -> None:
    world = asking(WAIT, 40.0, threads=HOSTS)
    said = judged(world, launcher=None).verdicts[0].summary
    assert "a key that nobody sets, or by another name" in said


def test_who_looks_into_the_store_may_wait_for_one_that_works() -> None:
    world = World()
    for rank in (0, 1):
        world.add(POLLS, SLEEP, process={"env": env(rank)})
    world.add(user("tokenize", 7, "rows.append(split(line))"), RUN, process={"env": env(2)})
    world.ranks[2] = replace(world.ranks[2], moved_at=NOW - 0.2, printed_at=NOW - 1.0)
    assert judged(world, launcher=None).state != "hung"
