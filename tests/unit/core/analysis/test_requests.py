"""Servers that wait for requests, which is no hang, and those whose requests are not answered."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hangtop_core.model.descriptors import Descriptor, Socket
from hangtop_core.model.snapshot import DescriptorTable
from support.build import NOW, World, judged
from support.situations import (
    CHILD,
    FUTEX,
    MODULE,
    POLL,
    QUEUE,
    RESULT,
    SLEEP,
    URLLIB,
    WAITPID,
    Stack,
    c10d,
    frame,
    inside,
    thread,
    user,
)

WHILE, FOR = (40, "while True:"), (30, "for step in range(steps):")
GET: Stack = inside((*QUEUE[:2], *user("lead", 44)), WHILE)
SERVE: Stack = (
    frame("_PollLikeSelector.select", "py:selectors.py", 415),
    frame("BaseServer.serve_forever", "py:socketserver.py", 233),
    frame("Thread.run", "py:threading.py", 982),
)
ACCEPT: Stack = (frame("socket.accept", "py:socket.py", 294), *user("doors", 12)[:1])
SHARES: Stack = (
    ACCEPT[0],
    frame("SocketListener.accept", "py:multiprocessing/connection.py", 609),
    frame("_ResourceSharer._serve", "py:multiprocessing/resource_sharer.py", 138),
)
GRPC: Stack = (frame("_serve", "grpc/_server.py", 1300), frame("run", "py:threading.py", 9))
LOOP: Stack = (
    frame("EpollSelector.select", "py:selectors.py", 468),
    frame("BaseEventLoop._run_once", "py:asyncio/base_events.py", 1890),
    frame("run", "py:asyncio/runners.py", 190),
    *user("frontend", 70)[:1],
)
HANDLES = frame("ThreadingMixIn.process_request_thread", "py:socketserver.py", 691)
ASKED: Stack = (*RESULT, frame("Handler.do_POST", "train.py", 70), HANDLES)
KEPT_OPEN: Stack = (
    frame("SocketIO.readinto", "py:socket.py", 706),
    frame("BaseHTTPRequestHandler.handle_one_request", "py:http/server.py", 406),
    HANDLES,
)
REPORTS: Stack = user("report", 90, "time.sleep(10)")
FEEDS: Stack = (*URLLIB[:3], *user("fetch", 61))
BROADCAST = c10d("broadcast_object_list")
EPOLL = ("S", "do_epoll_wait", "epoll_wait", 10, None)
LISTENS = Socket("tcp", "LISTEN", "0.0.0.0:8000", "0.0.0.0:0")
CALLED = Socket("tcp", "ESTABLISHED", "10.0.0.1:8000", "10.0.0.9:5000")
ANSWERED = msgspec.structs.replace(CALLED, answered=True)


def table(*sockets: Socket) -> DescriptorTable:
    loop = Descriptor(10, "anon", "anon_inode:[eventpoll]", watches=(11,))
    some = [Descriptor(11 + n, "socket", f"socket:[{n}]", socket=s) for n, s in enumerate(sockets)]
    return DescriptorTable(at=NOW, descriptors=(loop, *some))


def serving(
    *others: Stack, main: Stack = GET, facts: Any = FUTEX, waits: Stack = BROADCAST, **fields: Any
) -> World:
    """A rank with these threads, and others that wait for what it would pass on."""
    world = World()
    known = []
    for n, stack in enumerate(others):
        how = EPOLL if stack is LOOP else POLL if stack is SERVE else FUTEX
        known.append(thread(4005 + n, SLEEP if stack is REPORTS else how))
    world.add(
        main,
        facts,
        process={"threads": tuple(known)},
        sample={"others": [(f"t{n}", 4005 + n, one, False) for n, one in enumerate(others)]},
        **fields,
    )
    world.waiters(2, waits)
    return world


@pytest.mark.parametrize(
    "world",
    [
        serving(SERVE),
        serving(SERVE, GET, REPORTS, KEPT_OPEN),
        serving(ACCEPT),
        serving(GRPC),
        serving(LOOP, descriptors=table(LISTENS)),
        serving(main=(*SERVE[:2], *user("main", 88)), facts=POLL),
        serving(main=(*LOOP, MODULE), facts=EPOLL, descriptors=table(LISTENS)),
        serving(LOOP, descriptors=table(LISTENS, ANSWERED)),  # kept open until the next request
        serving(SERVE, waits=c10d("recv")),
    ],
)
def test_a_server_that_nobody_asks_for_anything_is_not_hung(world: World) -> None:
    found = judged(world)
    assert (found.state, found.verdicts) == ("idle", ())
    assert [one.rank for one in found.request_waits] == [0]


@pytest.mark.parametrize(
    "world",
    [
        serving(SERVE, ASKED),  # a request is open
        serving(LOOP, descriptors=table(LISTENS, CALLED)),
        serving(LOOP, descriptors=table(LISTENS, ANSWERED, CALLED)),
        serving(LOOP),
        serving(SERVE, FEEDS),  # another thread may fill the queue
        serving(GET),  # nobody serves
        serving(SHARES),  # multiprocessing does, for itself
        # A rank that trains, and has a port for its metrics.
        serving(SERVE, waits=c10d("all_reduce")),
        serving(SERVE, main=inside(GET, FOR, WHILE)),
        serving(SERVE, main=(*RESULT, *inside(user("lead", 44), WHILE))),
        serving(main=(*ACCEPT[:1], *inside(user("meet", 9), FOR)), facts=POLL),
    ],
)
def test_a_server_whose_requests_are_not_answered_or_that_is_none_hangs(world: World) -> None:
    found = judged(world)
    assert found.state == "hung"
    assert found.verdicts


def test_a_server_in_a_child_of_a_rank_that_reads_its_queue() -> None:
    read = (frame("Queue.get", "py:multiprocessing/queues.py", 103), *user("lead", 44))
    for stacks, state in (((SERVE,), "idle"), ((SERVE, ASKED), "hung"), ((QUEUE,), "hung")):
        world = serving(main=inside(read, WHILE))
        rank = world.ranks[0]
        child = world.process(9000, POLL, role="subprocess", label="subprocess python",
                              rank_pid=rank.process.pid, ppid=rank.process.pid)  # fmt: skip
        others = [("t", 9005, one, False) for one in stacks[1:]]
        sample = world.sample((*stacks[0], MODULE), pid=9000, others=others)
        world.give_children(rank, [(child, sample)])
        assert judged(world).state == state, stacks


def test_a_kernel_of_a_notebook_waits_for_cells() -> None:
    """Its loop is woken by zmq, whose connections stay open; a thread echoes heartbeats."""
    beats = frame("Heartbeat.run", "ipykernel/heartbeat.py", 106)
    zmq = (frame("device", "zmq/backend/cython/_device.py", 5), beats)
    for target, state in (("anon_inode:[eventfd]", "idle"), ("socket:[9]", "hung")):
        world = World()
        loop = Descriptor(10, "anon", "anon_inode:[eventpoll]", watches=(11,))
        sockets = [Descriptor(12 + n, "socket", f"socket:[{n}]", socket=one)
                   for n, one in enumerate((LISTENS, CALLED))]  # fmt: skip
        opened = DescriptorTable(NOW, (loop, Descriptor(11, "anon", target), *sockets))
        world.add((*LOOP, MODULE), EPOLL, descriptors=opened,
                  process={"threads": (thread(4005, POLL),), "rank_source": "--pid"},
                  sample={"others": [("Heartbeat", 4005, zmq, False)]})  # fmt: skip
        assert judged(world).state == state


SELECTS: Stack = inside(user("work", 9, "r, _, _ = select.select([s], [], [], 1.0)"), WHILE)


@pytest.mark.parametrize(
    ("sockets", "state"),
    [((LISTENS,), "idle"), ((LISTENS, ANSWERED), "idle"), ((), "progressing")],
)
def test_a_server_of_several_processes_that_poll_one_port(
    sockets: tuple[Socket, ...], state: str
) -> None:
    """They wake up every second; named, not found."""
    world = World()
    polled = ("S", "do_select", "select", None, None)
    rank = world.add(
        SELECTS, polled, moved_at=NOW, main_cpu_share=0.001, descriptors=table(*sockets)
    )
    child = world.process(9000, polled, role="subprocess", label="subprocess python",
                          rank_pid=rank.process.pid, ppid=rank.process.pid)  # fmt: skip
    sample = world.sample(SELECTS, pid=9000)
    world.give_children(rank, [(child, sample)], tables={9000: table(*sockets)})
    assert judged(world).state == state


def test_a_child_that_is_a_server_waits_for_requests_and_for_no_service() -> None:
    world = World()
    world.waiters(2)
    rank = world.add(CHILD, WAITPID)
    child = world.process(9000, POLL, role="subprocess", label="subprocess python",
                          rank_pid=rank.process.pid, ppid=rank.process.pid)  # fmt: skip
    sample = world.sample((*SERVE[:2], *user("gateway", 115)), pid=9000)
    world.give_children(rank, [(child, sample)])
    text = judged(world).verdicts[0].summary
    assert "which waits for requests at train.py:115 (gateway)" in text
    assert "remote service" not in text


def test_by_what_a_server_waits_for_requests_is_said() -> None:
    wait = judged(serving(main=(*SERVE[:2], *user("main", 88)), facts=POLL)).request_waits[0]
    assert (wait.who, wait.pid) == ("rank 0", 4000)
    assert wait.text == "a connection at train.py:88 (main)"
    wait = judged(serving(SERVE)).request_waits[0]
    assert wait.text == "get at train.py:44 (lead), thread 't0' for somebody to connect"


def test_who_waits_for_others_to_connect_is_named_after_those_that_may_fill_the_queue() -> None:
    fills = serving(SERVE, user("feed", 61), main=inside((*RESULT, *user("lead", 44)), FOR))
    text = judged(fills).verdicts[0].summary
    assert text.index("thread 't1' ") < text.index("thread 't0' ")
