"""What is asked of children of a rank, of its node's kernel, and by rules that logs speak for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from hangtop_core.analysis.verdict.rules import RULES
from hangtop_core.model.descriptors import Descriptor, Socket
from hangtop_core.model.node.facts import KernelLine
from hangtop_core.model.snapshot import DescriptorTable, Fact, Node
from support.build import HUNG_SINCE, NOW, World, judged
from support.situations import (
    FUTEX,
    IDLE_WORKER,
    INIT,
    LOADER,
    POLL,
    QUEUE,
    SLEEP,
    frame,
    user,
    worker_in,
)
from support.verdicts import printing, told

if TYPE_CHECKING:
    from hangtop_core.diagnosis import Diagnosis, Need
    from hangtop_core.model.snapshot import Process, Rank, StackSample
    from support.situations import Facts, Stack

CHILD = (
    frame("Popen.wait", "py:subprocess.py", 1264),
    *user("collect", 31, "child.join()"),
)


def asked(found: Diagnosis) -> dict[tuple[str, int | None], Need]:
    return {(one.kind, one.pid): one for one in found.needs}


def connection(remote: str) -> DescriptorTable:
    peer = Socket("tcp", "ESTABLISHED", "10.0.0.1:5", remote)
    return DescriptorTable(NOW, (Descriptor(11, "socket", "socket:[1]", socket=peer),))


def loading(stack: Stack, facts: Facts) -> tuple[World, Rank, tuple[Process, StackSample]]:
    """Three ranks wait, and one for a DataLoader worker that is there."""
    world = World()
    world.waiters(3)
    rank = world.add(LOADER, POLL, moved_at=NOW - 2.0)
    return world, rank, world.worker(rank, stack, facts)


def test_every_rule_asks_for_something_or_says_why_nothing_more_would_tell() -> None:
    for rule in RULES:
        assert bool(rule.needs) != bool(rule.complete), rule.title
        # It stands in a sentence, and says something of its own.
        assert not rule.complete or (rule.complete[-1] != "." and len(rule.complete) > 20)


def test_a_worker_that_polls_is_asked_to_whom_it_is_connected() -> None:
    world, rank, worker = loading(worker_in("fetch", 30, "http.get(url)"), POLL)
    pid, own = worker[0].pid, rank.process.pid
    rank = world.give_children(rank, [worker])
    before = judged(world)
    assert before.verdicts[0].cause == "dataloader-worker-stuck"
    # What is its own is told from what it has inherited by what its rank has open.
    assert {state.state for state in asked(before).values()} == {"wanted"}
    assert set(asked(before)) == {("descriptors", pid), ("descriptors", own)}
    # WHEN both come
    world.give_children(rank, [worker], tables={pid: connection("10.9.9.9:443")})
    world.ranks[-1] = msgspec.structs.replace(world.ranks[-1], descriptors=DescriptorTable(NOW, ()))
    after = judged(world)
    assert ", connected to 10.9.9.9:443" in after.verdicts[0].summary
    assert {one.state for one in asked(after).values()} == {"answered"}


def test_a_worker_in_a_lock_is_offered_to_be_paused_and_no_key_of_its_rank_does_that() -> None:
    world, rank, worker = loading(worker_in("decode", 30, "lib.decode(raw)"), FUTEX)
    pid = worker[0].pid
    world.give_children(rank, [worker])
    stands = asked(judged(world))["native stacks", pid]
    assert (stands.state, stands.key) == ("needs consent", "")
    assert stands.told == f"hangtop dump --pid {pid} --native"
    # WHEN it was paused
    sample = msgspec.structs.replace(worker[1], mode="native")
    world.ranks[-1] = msgspec.structs.replace(world.ranks[-1], child_samples={pid: sample})
    assert asked(judged(world))["native stacks", pid].state == "answered"


def test_a_child_that_polls_is_told_with_its_connection() -> None:
    world = World()
    world.waiters(3)
    rank = world.add(CHILD, ("S", "do_wait", "wait4", None, None), descriptors=None)
    child = world.process(5555, POLL, role="subprocess", ppid=rank.process.pid)
    sample = world.sample(user("upload", 8, "send(part)"), pid=5555)
    rank = world.give_children(rank, [(child, sample)])
    assert ("descriptors", 5555) in asked(judged(world))
    rank = world.give_children(rank, [(child, sample)], tables={5555: connection("10.9.9.9:443")})
    world.ranks[-1] = msgspec.structs.replace(rank, descriptors=DescriptorTable(NOW, ()))
    (verdict,) = judged(world).verdicts
    assert verdict.cause == "child-process-wait"
    assert "(upload), connected to 10.9.9.9:443" in verdict.summary


def test_what_the_kernel_said_of_a_worker_that_died_is_evidence() -> None:
    line = "Out of memory: Killed process 5555 (pt_data_worker) total-vm:1kB"
    other = "Out of memory: Killed process 5556 (python3) total-vm:1kB"
    log = tuple(KernelLine(HUNG_SINCE, text) for text in (other, line))
    world, rank, alive = loading(IDLE_WORKER, POLL)
    able = {"kernel log": Fact(True)}
    world.nodes["n1"] = Node("n1", "ready", kernel_lines=log, capabilities=able)
    dead = world.process(5555, None, role="dataloader-worker", state="Z", worker_id=1, exit_code=-9)
    world.give_children(rank, [alive, (dead, None)])
    found = judged(world)
    assert found.verdicts[0].cause == "dataloader-worker-dead"
    said = [one.text for one in found.verdicts[0].evidence if one.source == "kernel"]
    assert [text for text in said if "5555" in text] == [f"5:00 ago: {line}"]
    assert "5556" not in told(found.verdicts[0])
    states = {one.kind: one.state for one in found.needs}
    assert states == {"logs": "not possible", "kernel log": "answered"}


def test_of_a_rank_that_is_not_there_its_nodes_kernel_is_asked() -> None:
    world = World()
    able = {"kernel log": Fact(False, why="dmesg_restrict is 1")}
    world.nodes["n1"] = Node("n1", "ready", capabilities=able)
    for rank in (0, 1, 3):
        env = {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "4"}
        world.add(user("collect", 48), ("S", "sk_wait_data", "recvfrom", 5, None), rank=rank,
                  process={"env": env})  # fmt: skip
    found = judged(world, world_size=4)
    assert found.verdicts[0].cause == "rank-exited"
    (one,) = found.needs
    assert (one.kind, one.rank, one.node, one.pid) == ("kernel log", 2, "n1", None)
    assert (one.state, one.told) == ("not possible", "dmesg_restrict is 1")


@pytest.mark.parametrize(
    ("facts", "kinds"),
    [(POLL, {"descriptors"}), (FUTEX, {"native stacks"}), (SLEEP, {"descriptors"})],
)
def test_who_has_not_come_to_the_others_is_asked_by_how_it_sleeps(
    facts: Facts, kinds: set[str]
) -> None:
    world = World()
    world.waiters(3, INIT, POLL)
    world.add(user("prepare", 12, "library.prepare()"), facts)
    found = judged(world)
    assert found.verdicts[0].cause == "rank-never-joined"
    assert {one.kind for one in found.needs} == kinds


def test_an_event_loop_is_asked_for_its_connections_and_a_queue_of_threads_is_not() -> None:
    loop = (
        frame("EpollSelector.select", "py:selectors.py", 468),
        frame("BaseEventLoop._run_once", "py:asyncio/base_events.py", 1871),
        *user("serve", 7, "loop.run_until_complete(batches.get())"),
    )
    for stack, facts, kinds in ((loop, POLL, {"descriptors"}), (QUEUE, FUTEX, set[str]())):
        world = World()
        world.waiters(3)
        world.add(stack, facts)
        found = judged(world)
        assert found.verdicts[0].cause == "queue-wait"
        assert {one.kind for one in found.needs} == kinds


def test_c_frames_that_were_taken_are_evidence_whatever_the_cause() -> None:
    world = World()
    world.waiters(3)
    inside = frame("reap_threads", "/src/pool.c", 9)
    leaving = frame("destroy_process_group", "torch/distributed/distributed_c10d.py", 2100)
    native = msgspec.structs.replace(inside, native=True)
    one = world.add((native, leaving, *user("main", 90)), FUTEX)
    assert one.sample is not None
    world.ranks[-1] = msgspec.structs.replace(
        one, sample=msgspec.structs.replace(one.sample, mode="native")
    )
    found = judged(world)
    assert found.verdicts[0].cause == "teardown"
    assert "its C frames are in reap_threads (/src/pool.c:9)" in told(found.verdicts[0])
    assert asked(found)["native stacks", one.process.pid].state == "answered"


def test_rules_that_logs_speak_for_ask_recorders_of_who_is_there() -> None:
    world = World()
    world.waiters(3, process={"started_at": HUNG_SINCE - 7200})
    state = " failure detected by watchdog at work sequence id: 9 PG status: "
    state += "last enqueued work: {}, last completed work: 8"
    lines = [
        f"[rank{rank}]:[E1 ProcessGroupNCCL.cpp:1] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]"
        + state.format(8 if rank == 2 else 9)
        for rank in range(3)
    ]
    found = printing(world, *lines)
    assert found.verdicts[0].cause == "missing-collective"
    assert [(one.kind, one.rank) for one in found.needs] == [("recorder", 2)]


def test_c_frames_of_a_worker_are_evidence() -> None:
    inside = msgspec.structs.replace(frame("decode_jpeg", "/src/codec.c", 9), native=True)
    world, rank, worker = loading((inside, *worker_in("decode", 30, "lib.decode(raw)")), FUTEX)
    world.give_children(rank, [worker])
    assert "; its C frames are in decode_jpeg (/src/codec.c:9)" in told(judged(world).verdicts[0])


def test_of_a_rank_that_never_came_the_kernel_of_its_node_is_asked() -> None:
    world = World()
    world.nodes["n1"] = Node("n1", "ready", capabilities={"kernel log": Fact(True)})
    for rank in (0, 1, 3):
        env = {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "4"}
        world.add(INIT, POLL, rank=rank, process={"env": env})
    found = judged(world, world_size=4, launcher=None)
    assert found.verdicts[0].cause == "rank-never-joined"
    assert [(one.kind, one.rank, one.state) for one in found.needs] == [
        ("kernel log", 2, "answered")
    ]


def test_who_waits_for_its_threads_at_its_end_is_not_paused_for_that() -> None:
    ends = frame("_shutdown", "py:threading.py", 1590)
    for stack, kinds in (
        ((ends,), {"logs"}),
        ((frame("destroy_process_group", "torch/distributed/distributed_c10d.py", 2100),),
         {"logs", "native stacks"}),
    ):  # fmt: skip
        world = World()
        world.waiters(3)
        world.add((*stack, *user("main", 90)) if len(kinds) > 1 else stack, FUTEX)
        found = judged(world)
        assert found.verdicts[0].cause == "teardown"
        assert {one.kind for one in found.needs} == kinds


@pytest.mark.parametrize(
    ("stack", "kinds"),
    [
        (user("tokenize", 9, "with lock:"), {"native stacks"}),
        ((frame("Future.result", "py:concurrent/futures/_base.py", 451), *user("get", 9)), set()),
    ],
)
def test_a_forked_child_is_paused_for_a_lock_only(stack: Stack, kinds: set[str]) -> None:
    world = World()
    world.waiters(3)
    rank = world.add(CHILD, ("S", "do_wait", "wait4", None, None))
    child = world.process(5555, FUTEX, role="subprocess", ppid=rank.process.pid)
    child = msgspec.structs.replace(child, threads=child.threads[:1], thread_count=1)
    world.give_children(rank, [(child, world.sample(stack, pid=5555))])
    found = judged(world)
    assert found.verdicts[0].cause == "fork-deadlock"
    assert {one.kind for one in found.needs} == kinds
    assert {one.pid for one in found.needs} <= {5555}
