"""Servers of several processes: idle, or held up by an engine or an API server of the job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hangtop_core.descriptors import Descriptor, Socket
from hangtop_core.model import DescriptorTable
from support.build import NOW, World, judged
from support.situations import FUTEX, POLL, SLEEP, Facts, Stack, c10d, frame, inside, user

if TYPE_CHECKING:
    from hangtop_core.diagnosis import Diagnosis

WHILE = (40, "while True:")
ZMQ: Stack = (frame("Socket.recv_pyobj", "zmq/sugar/socket.py", 1033), *user("busy_loop", 13))
WORKER: Stack = inside(ZMQ, WHILE)
PIPE: Stack = (
    frame("Connection._recv", "py:multiprocessing/connection.py", 395),
    frame("Queue.get", "py:multiprocessing/queues.py", 103),
    *inside(user("worker", 17), WHILE),
)
ACTOR: Stack = (
    frame("Worker.main_loop", "ray/_private/worker.py", 1069),
    frame("<module>", "ray/_private/workers/default_worker.py", 323),
)
EVENTS: Stack = (
    frame("EpollSelector.select", "py:selectors.py", 468),
    frame("BaseEventLoop._run_once", "py:asyncio/base_events.py", 1890),
    frame("run", "py:asyncio/runners.py", 190),
    *user("main", 70)[:1],
)
HANDLER: Stack = (
    frame("Condition.wait", "py:threading.py", 327),
    frame("Event.wait", "py:threading.py", 629),
    *user("handle", 44)[:1],
    *EVENTS[1:],
)
LOCKED: Stack = inside(user("step", 34, "lock.acquire()"), WHILE)
SLEEPS: Stack = inside(user("step", 35, "time.sleep(3600)"), WHILE)
JOINS: Stack = (
    frame("Popen.wait", "py:multiprocessing/popen_fork.py", 43),
    frame("BaseProcess.join", "py:multiprocessing/process.py", 149),
    *user("main", 90),
)
EPOLL: Facts = ("S", "do_epoll_wait", "epoll_wait", 10, None)
LISTENS = Socket("tcp", "LISTEN", "0.0.0.0:8000", "0.0.0.0:0")
ASKED = Socket("tcp", "ESTABLISHED", "10.0.0.1:8000", "10.0.0.9:5000")
ANSWERED = Socket("tcp", "ESTABLISHED", "10.0.0.1:8000", "10.0.0.9:5000", answered=True)
PENDING = Socket("tcp", "LISTEN", "0.0.0.0:8000", "0.0.0.0:0", recv_queue=2)


def table(*sockets: Socket) -> DescriptorTable:
    watched = tuple(range(11, 11 + len(sockets)))
    loop = Descriptor(10, "anon", "anon_inode:[eventpoll]", watches=watched)
    some = [Descriptor(11 + n, "socket", f"socket:[{n}]", socket=s) for n, s in enumerate(sockets)]
    return DescriptorTable(at=NOW, descriptors=(loop, *some))


def of(
    engine: Stack,
    facts: Facts = FUTEX,
    *,
    workers: Stack = WORKER,
    api: Stack = EVENTS,
    sockets: tuple[Socket, ...] = (LISTENS,),
    odd: Stack | None = None,
    since: float | None = None,
    kind: str = "multiprocessing",
) -> Diagnosis:
    """What is concluded of workers, the engine that started them and an API server above it."""
    world = World()
    for _ in range(2):
        world.add(workers, POLL)
    if odd is not None:
        world.add(odd, FUTEX)
    some: dict[str, Any] = {"role": "launcher", "launcher": kind}
    engine_ = world.process(201, facts, label="VLLM::EngineCore", **some)
    server = world.process(200, EPOLL, label="api_server.py", started_at=NOW - 700, **some)
    stacks = ((engine_, engine), (server, api))
    return judged(
        world,
        launchers=(server, engine_),
        launcher_samples={
            f":{one.pid}": world.sample(
                stack, pid=one.pid, same_functions_since=since, active=facts[0] == "R"
            )
            for one, stack in stacks
        },
        launcher_descriptors={":200": table(*sockets)},
    )


@pytest.mark.parametrize(
    "found",
    [
        of(inside(ZMQ, WHILE), POLL),
        of(PIPE, workers=PIPE),
        of(JOINS),
        of(SLEEPS, SLEEP),
        of(WORKER, POLL, odd=c10d("broadcast_object_list")),
        of(WORKER, POLL, sockets=(LISTENS, ANSWERED)),
        of(JOINS, workers=ACTOR, kind="Ray"),
    ],
)
def test_a_server_of_which_all_processes_wait_for_requests_is_idle(found: Diagnosis) -> None:
    assert (found.state, found.verdicts, found.hung_for_s) == ("idle", (), None)
    assert {0, 1} <= {one.rank for one in found.request_waits}
    assert any(one.who == "api_server.py" for one in found.request_waits)


@pytest.mark.parametrize(
    ("found", "culprit"),
    [
        (of(LOCKED), ("VLLM::EngineCore", 201)),
        (of(WORKER, POLL, api=HANDLER), ("api_server.py", 200)),
        (of(SLEEPS, SLEEP, sockets=(LISTENS, ASKED)), ("VLLM::EngineCore", 201)),
        (of(WORKER, POLL, sockets=(LISTENS, ASKED)), ("api_server.py", 200)),
        (of(WORKER, POLL, sockets=(PENDING,)), ("api_server.py", 200)),
    ],
)
def test_a_controller_that_does_not_go_on_is_the_culprit(
    found: Diagnosis, culprit: tuple[str, int]
) -> None:
    assert found.state == "hung"
    verdict = found.verdicts[0]
    assert verdict.cause == "controller-stuck"
    assert [(one.role, one.pid, one.rank) for one in verdict.culprits] == [(*culprit, None)]
    assert len(found.verdicts) == 1, "ranks that wait for work are not blamed beside it"


def test_a_rank_at_work_on_a_request_is_no_idle_server() -> None:
    found = of(WORKER, POLL, odd=c10d("all_reduce"))
    assert found.state == "hung"
    assert 2 not in {one.rank for verdict in found.verdicts for one in verdict.culprits}


STORE = Socket("tcp", "ESTABLISHED", "127.0.0.1:29500", "127.0.0.1:5001")
"""Of another rank, at the store that rank 0 hosts; or of a mesh of gloo."""
HOST = Socket("tcp", "LISTEN", "0.0.0.0:29500", "0.0.0.0:0")


def commands(stack: Stack, waits: Stack, sockets: tuple[Socket, ...] = ()) -> Diagnosis:
    """Rank 0 in this stack, the others in a collective, under torchrun."""
    world = World()
    world.add(stack, POLL, descriptors=table(*sockets))
    world.waiters(2, waits)
    return judged(world)


def test_rank_0_waits_for_commands_that_it_broadcasts() -> None:
    found = commands(WORKER, c10d("broadcast_object_list"), (HOST, STORE))
    assert found.state == "idle"
    assert found.request_waits[0].text.startswith("zmq recv at train.py:13 (busy_loop)")


@pytest.mark.parametrize(
    ("stack", "waits"),
    [
        (WORKER, c10d("all_reduce")),
        (inside(ZMQ, (30, "for batch in range(steps):")), c10d("broadcast_object_list")),
        (PIPE, c10d("broadcast_object_list")),  # nobody is known who could fill it
    ],
)
def test_what_waits_for_a_message_of_a_step_is_no_idle_server(stack: Stack, waits: Stack) -> None:
    assert commands(stack, waits).state == "hung"


def test_an_engine_at_work_makes_progress() -> None:
    computes: Stack = inside(user("step", 36, "plan(batch)"), WHILE)
    assert of(computes, ("R", None, None, None, None), since=NOW - 2).state == "progressing"
    assert of(computes, ("R", None, None, None, None)).state == "hung"
