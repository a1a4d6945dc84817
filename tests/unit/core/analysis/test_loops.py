"""Ranks that wait in an event loop: for whom its connections tell."""

from __future__ import annotations

from typing import Any

import pytest

from hangtop_core.model.descriptors import Descriptor, Socket
from hangtop_core.model.snapshot import DescriptorTable
from support import situations
from support.build import NOW, World, judged
from support.situations import frame, user

LOOP = (
    frame("EpollSelector.select", "py:selectors.py", 468),
    frame("BaseEventLoop._run_once", "py:asyncio/base_events.py", 1890),
    frame("run", "py:asyncio/runners.py", 190),
)
RUNS = (*LOOP, *user("generate", 77))
IN_THREAD = (*LOOP, frame("run_loop", "train.py", 5))
BLOCKED = ("S", "do_epoll_wait", "epoll_wait", 10, None)
CHILD, THREAD = 9000, 4033
FAR = "10.0.0.7:443"


def sockets(*remotes: str, state: str = "ESTABLISHED", first: int = 11) -> list[Descriptor]:
    return [
        Descriptor(
            first + n,
            "socket",
            f"socket:[{first + n}]",
            socket=Socket("tcp", state, f"127.0.0.1:5000{n}", remote, peer_pid=CHILD),
        )
        for n, remote in enumerate(remotes)
    ]


def epoll(*fds: int) -> Descriptor:
    return Descriptor(10, "anon", "anon_inode:[eventpoll]", watches=fds)


SERVES = Descriptor(
    40, "socket", "socket:[40]", socket=Socket("tcp", "LISTEN", "0.0.0.0:50000", "0.0.0.0:0")
)


@pytest.mark.parametrize(
    ("descriptors", "cause"),
    [
        ([epoll(9, 11, 12), *sockets(FAR, FAR)], "remote-service-wait"),
        ([epoll(11), *sockets(FAR, "10.0.0.8:443")], "remote-service-wait"),
        # Which of two it waits for is not known; another thread may keep a connection open.
        ([epoll(11, 12), *sockets(FAR, "10.0.0.8:443")], "queue-wait"),
        ([epoll(9), *sockets(FAR)], "queue-wait"),
        ([epoll(11), *sockets("10.0.0.1:29500")], "queue-wait"),
        ([epoll(11, 40), *sockets(FAR), SERVES], "queue-wait"),  # others ask it
        ([], "queue-wait"),
    ],
)
def test_who_waits_in_an_event_loop_waits_for_who_is_at_its_connections(
    descriptors: list[Descriptor], cause: str
) -> None:
    world = World()
    world.waiters(2)
    table = DescriptorTable(at=NOW, descriptors=tuple(descriptors))
    rank = world.add(RUNS, BLOCKED, descriptors=table)
    serve = (*LOOP, frame("serve", "serve.py", 49))
    child = world.process(CHILD, situations.POLL, role="subprocess", label="subprocess vllm",
                          rank_pid=rank.process.pid, ppid=rank.process.pid)  # fmt: skip
    world.give_children(rank, [(child, world.sample(serve, pid=CHILD))])
    first = judged(world).verdicts[0]
    assert (first.cause, [c.rank for c in first.culprits]) == (cause, [2])
    if cause == "remote-service-wait":
        count = len([one for one in descriptors if one.fd in descriptors[0].watches])
        named = f"nothing comes on {count} connection{'s' if count > 1 else ''} to {FAR}, its "
        assert named + "child subprocess vllm (pid 9000), which " in first.summary
        assert "runs an event loop that waits at serve.py:49 (serve)" in first.summary


@pytest.mark.parametrize("beside", [False, True])
def test_the_loop_may_be_in_the_only_thread_at_work(beside: bool) -> None:
    world = World()
    world.waiters(2)
    table = DescriptorTable(at=NOW, descriptors=(epoll(11), *sockets(FAR)))
    others: list[Any] = [("client", THREAD, IN_THREAD, False)]
    others += [("writer", THREAD + 1, user("write", 9), False)] if beside else []
    rank = world.add(
        situations.QUEUE,
        situations.FUTEX,
        descriptors=table,
        process={
            "threads": (
                situations.thread(4020, situations.FUTEX),
                situations.thread(THREAD, BLOCKED),
            )
        },
        sample={"others": others},
    )
    assert rank.process.pid == 4020
    first = judged(world).verdicts[0]
    assert first.cause == ("queue-wait" if beside else "remote-service-wait")
    assert beside or "for its thread 'client', which runs an event loop," in first.summary


def asking(world: World, node: str, remote: str, own: bool = False) -> None:
    pid = 4005 + len(world.ranks) * 10
    socket = Socket("tcp", "ESTABLISHED", "10.1.0.1:5000", remote, peer_pid=pid if own else None)
    held = Descriptor(11, "socket", "socket:[11]", socket=socket)
    table = DescriptorTable(at=NOW, descriptors=(epoll(11), held))
    rank = world.add(RUNS, BLOCKED, node=node, descriptors=table)
    if own:
        child = world.process(pid, situations.POLL, role="subprocess", label="subprocess vllm",
                              rank_pid=rank.process.pid, ppid=rank.process.pid)  # fmt: skip
        serve = (*LOOP, frame("serve", "serve.py", 49))
        world.give_children(rank, [(child, world.sample(serve, pid=pid))])


@pytest.mark.parametrize("own", [False, True])
def test_ranks_that_wait_for_one_service_are_told_of_at_once(own: bool) -> None:
    world = World()
    for number in range(64):
        asking(world, f"n{number // 8 + 1}", f"127.0.0.1:{9000 + number}" if own else FAR, own)
    world.waiters(2, node="n9")
    found = [one for one in judged(world).verdicts if one.cause == "remote-service-wait"]
    assert [[c.rank for c in one.culprits] for one in found] == [list(range(64))]
    assert "ranks 0-63 wait in run at train.py:77 (generate) for " in found[0].summary
    told = f"nothing comes on 64 connections to {FAR}"
    if own:
        told = (
            "nothing comes on 64 connections to children of their own, each a child "
            "subprocess vllm, which "
        )
    assert told in found[0].summary


def test_services_of_several_nodes_and_names_are_told_of_apart() -> None:
    world = World()
    for number in range(8):
        asking(world, f"n{number // 4 + 1}", "127.0.0.1:8000" if number % 4 else FAR)
    world.waiters(2, node="n9")
    found = [one for one in judged(world).verdicts if one.cause == "remote-service-wait"]
    assert [[c.rank for c in one.culprits] for one in found] == [[1, 2, 3], [5, 6, 7], [0, 4]]
    assert "on 3 connections to 127.0.0.1:8000 on n2" in found[1].summary
