"""Servers of several processes: idle, or held up by an engine or an API server of the job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from hangtop_core.model.descriptors import Descriptor, Holder, Socket
from hangtop_core.model.meters import Meters
from hangtop_core.model.snapshot import DescriptorTable
from hangtop_core.report.diagnosis import diagnosis_text
from support.build import HUNG_SINCE, NOW, World, judged
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
    cpu: float = 0.0,
    moved: float = HUNG_SINCE,
    ran: float | None = None,
    how: Facts = POLL,
    opened: DescriptorTable | None = None,
) -> Diagnosis:
    """What is concluded of workers, the engine that started them and an API server above it."""
    world = World()
    for _ in range(2):
        world.add(
            workers,
            how,
            cpu_share=cpu,
            main_cpu_share=cpu / 50,
            moved_at=moved,
            descriptors=opened,
        )
    if odd is not None:
        world.add(odd, FUTEX)
    some: dict[str, Any] = {"role": "launcher", "launcher": kind}
    meters = Meters(main_last_ran_s=ran)
    engine_ = world.process(201, facts, label="VLLM::EngineCore", meters=meters, **some)
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
        of(JOINS, workers=ACTOR, kind="Ray", cpu=0.4, moved=NOW),  # it never rests
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


@pytest.mark.parametrize(("ran", "state"), [(None, "hung"), (300.0, "hung"), (4.0, "unknown")])
def test_a_controller_slept_there_before_anybody_looked(ran: float | None, state: str) -> None:
    since = None if ran is None else NOW - 2
    assert of(LOCKED, since=since, ran=ran).state == state


def except_for(error: str) -> Stack:
    """A main thread that sleeps in a loop after it has found nothing."""
    own, *rest = inside(user("receive", 27, "time.sleep(0.01)"), WHILE)
    return (replace(own, beside=((26, f"except {error}:"),)), *rest)


NOBLOCK: Stack = inside(user("receive", 25, "return sock.recv(zmq.NOBLOCK)"), WHILE)
POLLER: Stack = inside(
    (frame("Poller.poll", "zmq/sugar/poll.py", 106), *user("receive", 42)), WHILE
)
OWN_EPOLL: Stack = inside(
    user("loop", 57, "for f, _ in e.poll(2.0):"), WHILE, (57, "for f, _ in e.poll(2.0):")
)
FROM_ENGINE = Descriptor(11, "pipe", "pipe:[9]", holders=(Holder(201, "python", "S", "writes"),))


@pytest.mark.parametrize(
    ("workers", "how"),
    [
        (except_for("zmq.Again"), SLEEP),
        (except_for("queue.Empty"), SLEEP),
        (NOBLOCK, ("R", None, None, None, None)),
        (POLLER, POLL),
        (OWN_EPOLL, EPOLL),
    ],
)
def test_ranks_that_look_for_work_again_and_again_are_idle(workers: Stack, how: Facts) -> None:
    """None of them waits in an all_reduce, or for a key of the store, as others alike do."""
    opened = DescriptorTable(at=NOW, descriptors=(FROM_ENGINE,))
    idle, stuck = (
        of(stack, workers=workers, how=how, opened=opened) for stack in (inside(ZMQ, WHILE), LOCKED)
    )
    assert (idle.state, idle.verdicts) == ("idle", ())
    assert [one.cause for one in stuck.verdicts] == ["controller-stuck"]


@pytest.mark.parametrize(
    ("workers", "how", "opened"),
    [
        (except_for("OSError"), SLEEP, (FROM_ENGINE,)),
        (OWN_EPOLL, EPOLL, ()),
    ],
)
def test_who_looks_for_anything_else_is_not(
    workers: Stack, how: Facts, opened: tuple[Descriptor, ...]
) -> None:
    found = of(inside(ZMQ, WHILE), workers=workers, how=how, opened=DescriptorTable(NOW, opened))
    assert found.state != "idle"


def test_a_rank_at_work_on_a_request_is_no_idle_server() -> None:
    found = of(WORKER, POLL, odd=c10d("all_reduce"))
    assert found.state == "hung"
    assert 2 not in {one.rank for verdict in found.verdicts for one in verdict.culprits}


VLLM = "vllm/v1/executor/multiproc_executor.py"
READS = (
    frame("SpinTimer.spin", "vllm/distributed/device_communicators/shm_broadcast.py", 62),
    frame("MessageQueue.acquire_read", "vllm/distributed/device_communicators/shm_broadcast.py", 5),
    frame("MessageQueue.dequeue", "vllm/distributed/device_communicators/shm_broadcast.py", 6),
)
BUSY_LOOP: Stack = (*READS, frame("WorkerProc.worker_busy_loop", VLLM, 640))
RESPONSE: Stack = (*READS, frame("MultiprocExecutor.collective_rpc", VLLM, 290))
INPUT: Stack = (
    frame("Condition.wait", "py:threading.py", 327),
    frame("Queue.get", "py:queue.py", 171),
    frame("EngineCoreProc._process_input_queue", "vllm/v1/engine/core.py", 700),
    frame("EngineCoreProc.run_busy_loop", "vllm/v1/engine/core.py", 690),
)
RUNS: Facts = ("R", None, None, None, None)


def test_workers_of_vllm_that_spin_at_shared_memory_are_idle() -> None:
    world = World()
    for _ in range(2):
        world.add(BUSY_LOOP, RUNS, main_cpu_share=1.0, cpu_share=1.0, sample={"active": True})
    some: dict[str, Any] = {"role": "launcher", "launcher": "multiprocessing"}
    engine = world.process(201, FUTEX, label="VLLM::EngineCore", **some)
    samples = {":201": world.sample(INPUT, pid=201)}
    found = judged(world, launchers=(engine,), launcher_samples=samples)
    assert found.state == "idle"
    assert found.request_waits[0].text.startswith("shared memory")


def test_a_worker_of_vllm_that_computes_is_none() -> None:
    world = World()
    model = frame("ModelRunner.execute_model", "vllm/v1/worker/gpu_model_runner.py", 99)
    world.add((model, BUSY_LOOP[-1]), RUNS, main_cpu_share=1.0, sample={"active": True})
    world.add(BUSY_LOOP, RUNS, main_cpu_share=1.0, sample={"active": True})
    some: dict[str, Any] = {"role": "launcher", "launcher": "multiprocessing"}
    engine = world.process(201, RUNS, label="VLLM::EngineCore", **some)
    samples = {":201": world.sample(RESPONSE, pid=201, active=True)}
    assert judged(world, launchers=(engine,), launcher_samples=samples).state == "progressing"


def test_workers_that_wait_for_requests_are_not_blamed_beside_one_that_has_taken_one() -> None:
    found = of(WORKER, POLL, odd=LOCKED)
    assert found.state == "hung"
    assert [one.rank for verdict in found.verdicts for one in verdict.culprits] == [2]
    assert found.verdicts[0].cause == "lock-wait"


def test_of_a_worker_without_its_message_the_sender_is_to_be_looked_at() -> None:
    verdict = of(WORKER, POLL, odd=c10d("all_reduce")).verdicts[0]
    assert "at train.py:13 (busy_loop) for a message over zmq" in verdict.summary
    assert "hangtop dump --pid 201 --each" in verdict.next_steps[0]
    assert not any("HF_HUB_OFFLINE" in step for step in verdict.next_steps)


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
    assert not found.request_waits[0].is_proven, "nobody is known who would send it"
    assert "Most likely nobody asks this server" in diagnosis_text(found)


@pytest.mark.parametrize(
    ("ended", "observed_s", "state"),
    [
        ({"gone_at": NOW - 300}, 60, "hung"),
        ({"state": "Z"}, 60, "hung"),
        ({"state": "Z", "exit_code": 0}, 60, "idle"),
        ({"gone_at": NOW - 9000}, 60, "idle"),
        ({}, 60, "idle"),  # it gives no stack: it is no Python
        ({}, 15, "unknown"),  # its stack may yet come
    ],
)
def test_a_controller_that_is_gone_or_not_read_yet(
    ended: dict[str, Any], observed_s: float, state: str
) -> None:
    world = World(observed_since=NOW - observed_s)
    for _ in range(2):
        world.add(PIPE, POLL)
    some: dict[str, Any] = {"role": "launcher", "launcher": "multiprocessing"}
    engine = world.process(201, FUTEX, label="engine", **some)
    feeder = world.process(202, FUTEX, label="feeder", **{**some, **ended})
    samples = {":201": world.sample(WORKER, pid=201)}
    found = judged(world, launchers=(engine, feeder), launcher_samples=samples)
    assert found.state == state


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


def test_what_a_node_says_of_who_waits_is_cleaned() -> None:
    hostile: Stack = inside((ZMQ[0], *user("loop\x1b]52;c;x\x07", 13)), WHILE)
    waits = of(hostile, POLL, workers=hostile).request_waits
    assert len(waits) == 4
    assert not any("\x1b" in one.text or "\x07" in one.text for one in waits)


@pytest.mark.parametrize(
    ("stack", "state"), [(JOINS, "hung"), (SLEEPS, "idle"), (inside(ZMQ, WHILE), "idle")]
)
def test_a_parent_that_only_waits_for_its_children_asks_nobody(stack: Stack, state: str) -> None:
    """What should have filled the queue of its children was a thread of it that has died."""
    world = World()
    for _ in range(2):
        world.add(PIPE, POLL)
    parent = world.process(201, SLEEP if stack is SLEEPS else FUTEX, role="launcher",
                           launcher="multiprocessing", label="train.py")  # fmt: skip
    found = judged(world, launchers=(parent,), launcher_samples={":201": world.sample(stack)})
    assert found.state == state
    assert all(one.is_proven is (stack not in (SLEEPS, JOINS)) for one in found.request_waits)


def test_a_loop_that_ends_by_itself_is_no_server_where_nobody_is_known_to_ask() -> None:
    ends = inside(ZMQ, (30, "while step < steps:"))
    assert commands(ends, c10d("broadcast_object_list")).state == "hung"


def test_an_engine_at_work_makes_progress() -> None:
    computes: Stack = inside(user("step", 36, "plan(batch)"), WHILE)
    assert of(computes, ("R", None, None, None, None), since=NOW - 2).state == "progressing"
    assert of(computes, ("R", None, None, None, None)).state == "hung"
