"""Ranks that call each other by torch.distributed.rpc: who does not answer, and who only waits."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hangtop_core.model.snapshot import StackSample, ThreadStack
from hangtop_core.state.stack_table import StackTable
from support.build import NOW, World, judged
from support.situations import (
    BASE,
    FLOCK,
    FUTEX,
    PIPE_READ,
    RUN,
    SLEEP,
    Facts,
    Stack,
    frame,
    thread,
    user,
)
from support.verdicts import blamed, hung

API = "torch/distributed/rpc/api.py"
WRAPPED = frame("_require_initialized.<locals>.wrapper", API, 99)
AT_END = frame("main", "train.py", 90, "rpc.shutdown()")
SHUTDOWN: Stack = (
    frame("Condition.wait", "py:threading.py", 327),
    frame("Event.wait", "py:threading.py", 629),
    frame("_all_gather", API, 257),
    WRAPPED,
    frame("_wait_all_workers", API, 320),
    frame("shutdown", API, 382),
    WRAPPED,
    AT_END,
)
ASKS: Stack = (frame("rpc_sync", API, 842), WRAPPED, *user("train", 40, "rpc.rpc_sync('ps', f)"))
RUNS = frame("_run_function", "torch/distributed/rpc/internal.py", 209)
PUSH: Stack = (frame("push", "train.py", 29, "with GUARD:"), RUNS)
WOKEN: Stack = (
    frame("Condition.wait", "py:threading.py", 327),
    frame("push", "train.py", 31, "ALL_THERE.wait()"),
    RUNS,
)


def server(world: World, *calls: tuple[Stack, Facts], **fields: float) -> None:
    """Rank 0, which waits in shutdown while its threads answer these calls."""
    tids = range(4005, 4005 + len(calls))
    others = [("", tid, stack, False) for tid, (stack, _) in zip(tids, calls, strict=True)]
    facts = tuple(thread(tid, told) for tid, (_, told) in zip(tids, calls, strict=True))
    world.add(SHUTDOWN, FUTEX, process={"threads": facts}, sample={"others": others}, **fields)


def test_who_waits_in_shutdown_waits_for_whoever_has_not_come() -> None:
    world = World()
    world.waiters(2, SHUTDOWN)
    world.add(user("evaluate", 51), PIPE_READ)
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("io-wait", [2])
    assert "ranks 0-1 wait in rpc.shutdown at train.py:90 (main)" in verdict.summary


def test_a_server_that_waits_for_the_end_says_nothing_of_who_works() -> None:
    world = World()
    world.waiters(2, SHUTDOWN)
    busy = {"active": True, "gil": True}
    world.add(user("fit", 51), RUN, sample=busy, main_cpu_share=1.0, moved_at=NOW)
    assert judged(world).state == "unknown"


def test_who_goes_round_for_ever_keeps_the_others_in_shutdown() -> None:
    world = World()
    world.waiters(2, SHUTDOWN)
    inside = replace(frame("fit", "train.py", 51), within=((50, "while True:"),))
    file, name, since = inside.file, inside.name, world.observed_since + 1.0
    one = world.add((inside, *BASE), RUN, sample={"active": True, "gil": True}, main_cpu_share=1.0)
    sample = replace(one.sample, loops=((file, name, 50, since),))
    world.ranks[-1] = replace(one, sample=sample)
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("busy-in-python", [2])


def test_a_server_whose_thread_is_stuck_in_a_call_while_its_main_thread_waits_for_the_end() -> None:
    world = World()
    server(world, (PUSH, FUTEX), (PUSH, FLOCK), cpu_share=1.0)  # a thread of TensorPipe spins
    world.waiters(2, ASKS)
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("file-lock", [0])
    assert "answers a call by RPC in its thread '4006', which" in verdict.summary
    assert "ranks 1-2 wait in rpc.rpc_sync at train.py:40 (train)" in verdict.summary


def test_calls_that_wait_for_one_lock() -> None:
    world = World()
    server(world, (PUSH, FUTEX), (PUSH, FUTEX))
    world.waiters(2, ASKS)
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("lock-wait", [0])
    assert "waits for a lock at train.py:29 (push)" in verdict.summary
    assert "MainThread" not in verdict.summary


@pytest.mark.parametrize("call", [WOKEN, PUSH, (frame("push", "train.py", 33), RUNS)])
def test_a_call_that_waits_to_be_woken_is_a_victim_of_who_stays_away(call: Stack) -> None:
    # GIVEN a server that answers once all have called, and a rank that does not get there
    world = World()
    server(world, (call, SLEEP if call[0].line == 33 else FUTEX))
    world.waiters(1, ASKS)
    world.add(user("evaluate", 51), RUN, sample={"active": True, "gil": True}, main_cpu_share=1.0)
    found = judged(world)
    assert [(one.cause, blamed(one)) for one in found.verdicts] == [("busy-in-python", [2])]


def test_a_call_that_waits_to_be_woken_may_wait_for_a_call() -> None:
    world = World()
    server(world, (WOKEN, FUTEX))
    world.waiters(2, ASKS)
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("lock-wait", [0])
    assert "or a call by another rank is to do that, and has not come" in verdict.summary
    assert verdict.confidence <= 0.6


def test_a_call_that_computes_gets_on() -> None:
    world = World()
    server(world, (PUSH, RUN))
    world.waiters(2, ASKS)
    assert judged(world).state != "hung"


def test_who_only_waits_in_shutdown_while_nobody_asks_is_not_looked_at() -> None:
    world = World()
    server(world, (WOKEN, FUTEX))
    world.waiters(1, SHUTDOWN)
    world.add(user("evaluate", 51), PIPE_READ)
    assert [blamed(one) for one in judged(world).verdicts] == [[2]]


def test_functions_of_calls_that_are_answered_count() -> None:
    table = StackTable()
    table.add("main", SHUTDOWN)
    table.add("push", PUSH)
    table.add("pull", (frame("pull", "train.py", 60), RUNS))
    main = ThreadStack(1, "MainThread", False, False, "main")
    told = [
        table.served(
            StackSample(NOW, 0.0, "nonblocking", (main, ThreadStack(2, None, False, False, key)))
        )
        for key in ("push", "pull", "main")
    ]
    assert told[0] != told[1]
    assert not told[2]
