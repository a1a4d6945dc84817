"""Blind spots say what could not be seen, why, and what would change that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from hangtop.cli.jobs.observe import exit_status
from hangtop_core.analysis.verdict.blind import blind_spots
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.logs.meaning.kernel_lines import INIT_PID_NS, deaths
from hangtop_core.model.node.facts import KernelLine
from hangtop_core.model.snapshot import Fact, Failure, Node, Recorder, Snapshot
from hangtop_core.report.diagnosis import diagnosis_text
from support.build import NOW, World, recorder
from support.gpus import gpu
from support.situations import FUTEX, c10d, thread

if TYPE_CHECKING:
    from hangtop_core.diagnosis import BlindSpot


def spots(snapshot: Snapshot) -> dict[str, BlindSpot]:
    return {one.what: one for one in blind_spots(snapshot, snapshot.job(None))}


def test_a_job_that_was_seen_whole_has_none() -> None:
    world = World()
    world.waiters(3, recorder=recorder(["all_reduce"], 0))
    assert spots(world.snapshot()) == {}


def test_gpus_of_ranks_that_cannot_be_read() -> None:
    cuda = (thread(4999, FUTEX, "cuda-EvtHandlr"),)
    world = World()
    world.waiters(2, recorder=recorder(["all_reduce"], 0), process={"threads": cuda})
    fact = Fact(ok=False, why="no NVIDIA driver on this node")
    world.nodes["n1"] = Node("n1", "ready", capabilities={"nvml": fact})
    spot = spots(world.snapshot())["GPUs"]
    assert (spot.nodes, spot.ranks) == (("n1",), (0, 1))
    assert spot.why == "the node says: no NVIDIA driver on this node"
    hung = gpu(1, state="silent", error="NVML gave no answer for 10 s, asked for GPU 1")
    world.nodes["n1"] = Node("n1", "ready", gpus=(gpu(0), hung))
    spot = spots(world.snapshot())["GPUs"]
    assert spot.why == f"the node says: {hung.error}"
    assert spot.fix is not None
    assert "timeout 20 nvidia-smi" in spot.fix
    world.nodes["n1"] = Node("n1", "ready", gpus=(gpu(0), gpu(1)))
    assert "GPUs" not in spots(world.snapshot())


def test_a_node_that_answers_and_never_shows_its_processes_is_one() -> None:
    world = World()
    world.waiters(3, recorder=recorder(["all_reduce"], 0))
    world.nodes["n7"] = Node("n7", state="slow", reason="its process table stands still")
    (spot,) = blind_spots(world.snapshot(), world.snapshot().job(None))
    assert (spot.what, spot.nodes) == ("node", ("n7",))
    assert spot.why == "slow: its process table stands still"


def test_a_recorder_that_could_not_be_read_says_why() -> None:
    world = World()
    world.waiters(2)
    failure = Failure("timeout", "the debug server did not answer in 2 s")
    world.add(c10d("all_reduce"), FUTEX, recorder=Recorder(at=NOW, failure=failure))
    found = list(blind_spots(world.snapshot(), world.snapshot().jobs[0]))
    assert [(one.what, one.ranks) for one in found] == [
        ("flight recorder", (0, 1)),
        ("flight recorder", (2,)),
    ]
    assert found[1].why == "the debug server did not answer in 2 s"
    assert all(one.fix for one in found)


def test_nodes_tools_users_and_ranks_that_are_not_seen() -> None:
    world = World()
    world.waiters(2)
    spy = Fact(ok=False, why="py-spy 0.3 is too old for Python 3.13", fix="pip install -U py-spy")
    world.nodes["n1"] = Node("n1", "ready", capabilities={"py-spy": spy}, other_users={"eva": 3})
    world.nodes["n2"] = Node("n2", "unreachable", reason="ssh: connection timed out")
    found = spots(world.snapshot(world_size=4))
    assert found["node"].nodes == ("n2",)
    assert "connection timed out" in found["node"].why
    assert (found["py-spy"].nodes, found["py-spy"].fix) == (("n1",), "pip install -U py-spy")
    assert "3 rank-like processes of user eva" in found["other users"].why
    assert found["ranks"].ranks == (2, 3)


def test_a_node_whose_table_stands_still_is_told_with_its_age() -> None:
    world = World()
    world.waiters(2)
    world.nodes["n2"] = Node("n2", "slow", reason="its process table stands still")
    world.nodes["n2"] = replace(world.nodes["n2"], last_seen=NOW - 40)
    found = spots(world.snapshot())["node"]
    assert found.nodes == ("n2",)
    assert found.why == "slow: its process table stands still; last read 40 s ago"
    world.nodes["n2"] = replace(world.nodes["n2"], last_seen=NOW - 4)
    assert "node" not in spots(world.snapshot())


def test_a_rank_of_another_user_whose_number_cannot_be_read() -> None:
    world = World()
    hidden = world.process(77, None, user="eva", denied="it belongs to eva; run hangtop as eva")
    found = spots(world.snapshot(unnumbered=(hidden,)))["rank number"]
    assert "pid 77 (user eva)" in found.why
    assert found.fix == "run hangtop as eva"


def test_ranks_that_cannot_be_read_for_one_reason_are_one_blind_spot() -> None:
    world = World()
    denied = "it belongs to eva; run hangtop as eva"
    hidden = tuple(world.process(pid, None, user="eva", denied=denied) for pid in range(70, 82))
    other = world.process(99, None, user="bob", denied="it belongs to bob; run hangtop as bob")
    snapshot = world.snapshot(unnumbered=(*hidden, other))
    found = [one for one in blind_spots(snapshot, snapshot.jobs[0]) if one.what == "rank number"]
    assert len(found) == 2
    assert "pids 70, 71, 72, 73, 74, 75, 76, 77 and 4 more (user eva)" in found[0].why
    assert found[1].fix == "run hangtop as bob"


def test_a_process_that_is_named_but_no_rank_lets_nothing_be_said() -> None:
    world = World()
    other = world.process(77, None, user="ada")
    snapshot = world.snapshot(unnumbered=(other,))
    assert diagnose(snapshot, snapshot.jobs[0], hang_after=30.0).state == "unknown"


def test_without_a_job_it_says_what_was_looked_for_and_found() -> None:
    snapshot = Snapshot(
        at=NOW,
        observed_since=NOW - 3,
        tick=3,
        nodes=(Node("n1", "ready", processes=212, python_processes=("python3 server.py",)),),
    )
    found = diagnose(snapshot, None)
    (spot,) = found.blind_spots
    assert spot.what == "training job"
    assert "212 processes" in spot.why
    assert "python3 server.py" in spot.why
    assert "--pid" in spot.fix


KILLED = "Out of memory: Killed process {} ({}) total-vm:1kB, anon-rss:1kB, UID:{} pgtables:1kB"
KERNEL = (
    KernelLine(NOW - 7200, KILLED.format(1, "python3", 1000)),
    KernelLine(NOW - 400, "oom-kill:constraint=CONSTRAINT_NONE,task=python3,pid=7,uid=1000"),
    KernelLine(NOW - 300, KILLED.format(4711, "pt_main_thread", 1000)),
    KernelLine(NOW - 200, KILLED.format(12, "java", 1000)),
    KernelLine(NOW - 100, KILLED.format(4712, "python3", 1001)),
    KernelLine(NOW - 50, "python3[4713]: segfault at 0 ip 0 sp 0 error 4 in a.so"),
)


def kernel_node(**fields: Any) -> Node:
    return Node("n1", "ready", kernel_lines=KERNEL, uid=1000, **fields)


def test_without_a_job_it_tells_which_processes_of_the_user_the_kernel_has_killed_lately() -> None:
    snapshot = Snapshot(NOW, NOW - 3, 3, nodes=(kernel_node(),))
    (spot,) = diagnose(snapshot, None).blind_spots
    assert "pid 4711 (pt_main_thread) killed for want of memory 5:00 ago" in spot.why
    assert "pid 7 (python3) killed for want of memory" in spot.why
    for strange in ("pid 1 ", "java", "4712", "4713"):
        assert strange not in spot.why


def test_a_process_that_the_user_has_named_is_told_of_whosever_it_was() -> None:
    assert any("pid 4713 (python3) crashed" in one for one in deaths(kernel_node(), NOW, [4713]))
    assert not any("4713" in one for one in deaths(kernel_node(), NOW))


def test_two_lines_of_the_kernel_about_one_end_are_told_once() -> None:
    twice = "oom-kill:constraint=CONSTRAINT_MEMCG,task=pt_main_thread,pid=4711,uid=1000"
    node = Node("n1", "ready", kernel_lines=(*KERNEL, KernelLine(NOW - 300, twice)), uid=1000)
    assert sum("pid 4711" in one for one in deaths(node, NOW)) == 1


def test_in_a_container_the_numbers_of_the_kernel_are_those_of_others() -> None:
    assert deaths(kernel_node(pid_ns=INIT_PID_NS), NOW, [4713])
    assert not deaths(kernel_node(pid_ns=4026532001), NOW, [4713])


def test_ranks_that_cannot_be_read_are_no_job_that_starts() -> None:
    world = World()
    denied = "it belongs to root and hangtop runs as me; sudo hangtop"
    process = world.process(500, None, user="root", denied=denied)
    snapshot = world.snapshot(ranks=(), unnumbered=(process,), world_size=None)
    found = diagnose(snapshot, snapshot.jobs[0])
    assert (found.state, exit_status(found)) == ("unknown", 13)
    assert "1 rank that cannot be read" in diagnosis_text(found)
    one = spots(snapshot)["rank number"]
    assert one.why.endswith("it belongs to root and hangtop runs as me")
    assert one.fix == "sudo hangtop"
