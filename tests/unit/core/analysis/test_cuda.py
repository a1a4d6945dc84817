"""Ranks on GPUs, and ranks that connect: made stacks, since no GPU is here. Pinning, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hangtop_core.analysis.activity import Reader
from hangtop_core.model.meters import Stalled
from hangtop_core.model.snapshot import Frame, Node
from support.build import HUNG_SINCE, NOW, World, judged
from support.situations import (
    FUTEX,
    IDLE_WORKER,
    INIT,
    LOADER,
    MESH,
    POLL,
    RUN,
    c10d,
    frame,
    thread,
    user,
)

if TYPE_CHECKING:
    from hangtop_core.diagnosis import Diagnosis
    from support.situations import Stack

ITEM = user("step", 88, "total += loss.item()")
LOOP = user("step", 88, "total += table[key]")


def cuda(world: World, stack: Stack, facts: Any = RUN, **process: Any) -> None:
    pid = 4000 + len(world.ranks) * 10
    extra = (thread(pid + 9, FUTEX, "cuda-EvtHandlr"),)
    world.add(stack, facts, process={"threads": extra, **process})


def test_rank_that_runs_in_item_waits_for_its_gpu_and_is_not_busy() -> None:
    world = World()
    cuda(world, ITEM)
    snapshot = world.snapshot()
    activity = Reader(snapshot.stacks).rank(snapshot.jobs[0].ranks[0])
    assert (activity.kind, activity.text) == ("work-wait", "waits for its GPU")


def test_rank_without_a_gpu_that_runs_there_is_busy() -> None:
    world = World()
    world.waiters(3)
    world.add(ITEM, RUN)
    assert judged(world).verdicts[0].cause == "busy-in-python"


def test_rank_on_a_gpu_that_runs_elsewhere_is_busy() -> None:
    world = World()
    world.waiters(3)
    cuda(world, LOOP)
    assert judged(world).verdicts[0].cause == "busy-in-python"


def test_allocation_behind_a_collective_is_named() -> None:
    world = World()
    world.waiters(3)
    malloc = (
        Frame("cudaMalloc", "libcudart.so.12", "libcudart.so.12", 0, native=True),
        *user("grow", 12, "x = torch.empty(n)"),
    )
    cuda(world, malloc)
    first = judged(world).verdicts[0]
    assert (first.cause, [c.rank for c in first.culprits]) == ("cuda-alloc-behind-collective", [3])
    assert first.victims == (0, 1, 2)


@pytest.mark.parametrize(
    ("nccl", "value", "given"),
    [("2.14.3", "1", True), ("2.17.1", "1", False), ("2.14.3", "0", False)],
)
def test_launch_blocking(nccl: str, value: str, given: bool) -> None:
    world = World()
    for rank in range(3):
        env = {"RANK": str(rank), "CUDA_LAUNCH_BLOCKING": value}
        process = {"env": env, "versions": {"nccl": nccl}}
        world.add(c10d("all_reduce"), FUTEX, process=process)
    causes = [verdict.cause for verdict in judged(world).verdicts]
    assert ("launch-blocking-known-hang" in causes) == given


def pinning(*above: Any) -> World:
    """Rank 3 waits for its DataLoader, whose thread that pins memory is inside these frames."""
    world = World()
    world.waiters(3)
    loop = frame("_pin_memory_loop", "torch/utils/data/_utils/pin_memory.py", 49)
    stack = (*above, loop)
    rank = world.add(LOADER, POLL, sample={"others": [("pt_data_pin", 4035, stack, False)]})
    world.give_children(rank, [world.worker(rank, IDLE_WORKER, POLL)])
    return world


def test_thread_that_pins_memory_and_is_stuck_in_it() -> None:
    pin = frame("pin_memory", "torch/utils/data/_utils/pin_memory.py", 59)
    own = frame("Batch.pin_memory", "train.py", 12)
    first = judged(pinning(own, pin)).verdicts[0]
    assert (first.cause, [c.rank for c in first.culprits]) == ("pin-memory-stuck", [3])
    assert "train.py:12" in first.summary


def test_thread_that_waits_for_a_queue_while_it_pins() -> None:
    pin = frame("pin_memory", "torch/utils/data/_utils/pin_memory.py", 59)
    own = frame("Batch.pin_memory", "train.py", 12)
    get = frame("Queue.get", "py:queue.py", 171)
    first = judged(pinning(get, own, pin)).verdicts[0]
    assert (first.cause, [c.rank for c in first.culprits]) == ("pin-memory-stuck", [3])
    assert "train.py:12" in first.summary


def test_thread_that_has_nothing_to_pin() -> None:
    get = frame("Queue.get", "py:multiprocessing/queues.py", 113)
    causes = [v.cause for v in judged(pinning(get)).verdicts]
    assert "pin-memory-stuck" not in causes


IN_QUEUE = (
    frame("Condition.wait", "py:threading.py", 331),
    frame("Queue.get", "py:queue.py", 180),
    *LOADER[4:],
)


def without(stack: Stack = IN_QUEUE, *others: Any) -> World:
    """Rank 3 waits for its DataLoader, and has these other threads."""
    world = World()
    world.waiters(3)
    rank = world.add(stack, FUTEX, sample={"others": list(others)} if others else {})
    world.give_children(rank, [world.worker(rank, IDLE_WORKER, POLL)])
    return world


def test_thread_that_pins_memory_and_has_died() -> None:
    writer = (frame("writer", "train.py", 7), frame("Thread.run", "py:threading.py", 982))
    for others in ((), (("writer", 4035, writer, True),), ((None, 4036, (), False),)):
        first = judged(without(IN_QUEUE, *others)).verdicts[0]
        assert (first.cause, [c.rank for c in first.culprits]) == ("pin-memory-stuck", [3])
        assert "the thread that pins memory is not there any more" in first.summary


def test_thread_that_pins_memory_and_is_there() -> None:
    loop = frame("_pin_memory_loop", "torch/utils/data/_utils/pin_memory.py", 49)
    put = frame("Queue.put", "py:queue.py", 140)
    for stack in ((loop,), (put, loop), ()):  # the last one: it gave no stack
        told = judged(without(IN_QUEUE, ("pt_data_pin", 4035, stack, False))).verdicts
        assert "pin-memory-stuck" not in [one.cause for one in told]


def test_no_thread_is_missed_where_nothing_is_pinned() -> None:
    assert "pin-memory-stuck" not in [one.cause for one in judged(without(LOADER)).verdicts]


def meeting(*stalled: Stalled, stack: Stack = INIT) -> Diagnosis:
    world = World()
    for number in range(2):
        env = {"RANK": str(number), "MASTER_PORT": "29500"}
        world.nodes[f"n{number}"] = Node(
            f"n{number}", "ready", addresses=(f"10.0.0.{number}",), last_seen=NOW
        )
        told = stalled if number == 0 else ()
        process = {"env": env, "stalled": tuple(told)}
        world.add(stack, FUTEX, node=f"n{number}", process=process, moved_at=HUNG_SINCE)
    return judged(world)


def test_port_on_which_nobody_answers() -> None:
    tried = Stalled("10.0.0.0:5", "10.0.0.1:41000", 1, 3, "SYN_SENT")
    assert meeting(tried).verdicts[0].cause == "store-unreachable"  # making its store
    first = meeting(tried, stack=MESH).verdicts[0]
    assert (first.cause, [c.rank for c in first.culprits]) == ("port-blocked", [0])
    assert "n1 (10.0.0.1) port 41000" in first.summary
    assert "tried 4 times" in first.evidence[0].text


def test_what_a_node_calls_a_port_gets_into_no_command() -> None:
    tried = Stalled("10.0.0.0:5", "10.0.0.1:$(reboot)", 1, 3, "SYN_SENT")
    first = meeting(tried, stack=MESH).verdicts[0]
    assert first.cause == "port-blocked"
    assert not [step for step in first.next_steps if "reboot" in step]


def test_store_that_nobody_answers_for() -> None:
    first = meeting(Stalled("10.0.0.0:5", "10.9.9.9:29500", 1, 3, "SYN_SENT")).verdicts[0]
    assert (first.cause, [c.rank for c in first.culprits]) == ("store-unreachable", [0])
    assert "10.9.9.9:29500" in first.summary
    assert first.next_steps[0].startswith("timeout 5 bash -c '</dev/tcp/10.9.9.9/29500'")


def test_store_that_has_closed_its_connections() -> None:
    first = meeting(Stalled("10.0.0.0:5", "10.0.0.1:29500", 0, 0, "CLOSE_WAIT")).verdicts[0]
    assert first.cause == "store-dead"
    assert any("| grep -i -e oom -e killed" in step for step in first.next_steps)
    assert "(rank 0, or torchrun) is gone. rank 0 still waits for it" in first.summary


def test_other_closed_connections_are_nobodys_business() -> None:
    found = meeting(Stalled("10.0.0.0:5", "10.9.0.1:443", 0, 0, "CLOSE_WAIT"))
    assert "store-dead" not in [verdict.cause for verdict in found.verdicts]
