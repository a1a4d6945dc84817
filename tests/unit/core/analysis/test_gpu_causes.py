"""Verdicts about GPUs and network ports, on built snapshots: cause, culprit, what rules it out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from hangtop_core.model.node.hardware import GpuProcess, Nic, NvLink, Rows, Xid
from hangtop_core.model.snapshot import Node
from hangtop_core.text.rank_sets import fold
from support.build import HUNG_SINCE, NOW, World, judged
from support.gpus import BUSY, IDLE, SPINS, gpu
from support.situations import FUTEX, RUN, SLEEP, Facts, c10d, frame, user
from support.verdicts import causes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hangtop_core.model.node.hardware import Gpu

SYNC = (frame("synchronize", "torch/cuda/__init__.py", 1040), *user("train_step", 61))
PIDS = [4000, 4010, 4020, 4030]


def on(index: int, **fields: Any) -> Gpu:
    """A GPU with the process of the rank of this number."""
    made = gpu(index, **fields)
    if made.processes is not None:
        return made
    return msgspec.structs.replace(made, processes=(GpuProcess(PIDS[index], 60 << 30),))


def all_wait(others: Mapping[str, Any] = SPINS, **special: Gpu) -> World:
    """Four ranks that spin in all_reduce, each on a GPU of its own."""
    world = World()
    world.waiters(4, facts=RUN)
    gpus = {f"g{n}": on(n, **others) for n in range(4)} | special
    world.nodes["n1"] = Node("n1", "ready", gpus=tuple(gpus[name] for name in sorted(gpus)))
    return world


def test_ranks_that_spin_with_gpus_that_spin_are_hung() -> None:
    found = judged(all_wait())
    assert (found.state, found.hung_for_s is not None) == ("hung", True)
    assert causes(found) == ["unknown"]
    texts = [one.text for one in found.verdicts[0].evidence]
    assert "GPUs of ranks 0-3 are busy by 100 % at 118 W: a kernel waits on them" in texts


def test_what_is_told_of_gpus_is_of_those_that_do_so() -> None:
    # GIVEN a rank with two GPUs, of which one does nothing
    world = World()
    world.waiters(1, facts=RUN)
    pid = world.ranks[0].process.pid
    pair = [
        gpu(index, processes=(GpuProcess(pid, 0),), **does)
        for index, does in enumerate((SPINS, IDLE))
    ]
    world.nodes["n1"] = Node("n1", "ready", gpus=tuple(pair))
    (verdict,) = judged(world).verdicts
    texts = [one.text for one in verdict.evidence]
    assert "GPUs of rank 0 are busy by 100 % at 118 W: a kernel waits on them" in texts
    assert "GPUs of rank 0 are idle, at 88 W" in texts


def test_the_same_ranks_are_not_hung_while_a_gpu_works() -> None:
    assert judged(all_wait(g2=on(2, **BUSY, worked_at=NOW - 1))).state == "progressing"


def test_a_rank_that_prints_is_not_hung_whatever_its_gpu_does() -> None:
    # GIVEN ranks that were met in the same line all the time, as where each step ends in `.item()`
    world = all_wait()
    assert judged(world).state == "hung"
    world.ranks[1] = msgspec.structs.replace(world.ranks[1], printed_at=NOW - 2)
    assert judged(world).state == "progressing"


def test_without_readings_spinning_ranks_stay_undecided() -> None:
    world = all_wait()
    world.nodes["n1"] = Node("n1", "ready")
    assert judged(world).state != "hung"


def test_that_nvml_hangs_says_nothing_of_ranks_that_spin() -> None:
    found = judged(all_wait({"state": "silent", "error": "NVML gave no answer"}))
    assert (found.state, causes(found)) == ("unknown", [])


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("lost", "is lost"),
        ("silent", "does not answer"),
        ("reset-required", "needs to be reset"),
    ],
)
def test_a_lost_gpu_and_the_rank_on_it(state: str, text: str) -> None:
    world = World()
    world.waiters(4, facts=FUTEX)
    gpus = [on(n, **SPINS) for n in range(4)]
    gpus[2] = on(2, state=state, error="why")
    world.nodes["n1"] = Node("n1", "ready", gpus=tuple(gpus))
    found = judged(world)
    first = found.verdicts[0]
    assert (first.cause, [one.rank for one in first.culprits]) == ("gpu-lost", [2])
    assert first.culprits[0].gpu == 2
    assert first.victims == (0, 1, 3)
    assert text in first.summary
    assert "rank 2 (n1, pid 4020) is on it" in first.summary
    assert "ranks 0-1,3 wait in all_reduce" in first.summary
    assert any("state=drain" in step for step in first.next_steps)
    assert causes(found) == ["gpu-lost"]


def test_a_lost_gpu_explains_that_its_rank_has_gone_and_links_of_others() -> None:
    world = all_wait(
        g1=on(1, **SPINS, links=(NvLink(0, False), NvLink(1, True)), xids=(Xid(74, NOW - 300),)),
        g2=on(2, state="lost", xids=(Xid(79, HUNG_SINCE - 2),)),
    )
    rank = world.ranks[2]
    gone = msgspec.structs.replace(rank.process, gone_at=HUNG_SINCE, exit_code=-6)
    world.ranks[2] = msgspec.structs.replace(rank, state="exited", process=gone)
    found = judged(world)
    assert causes(found) == ["gpu-lost"]
    assert "Xid 79, the GPU has fallen off the bus" in found.verdicts[0].summary
    assert found.verdicts[0].confidence == 0.97


def test_a_rank_that_sleeps_is_not_explained_by_its_gpu() -> None:
    world = World()
    world.waiters(3, facts=RUN)
    world.add(user("evaluate", 41), SLEEP)
    gpus = [*(on(n, **SPINS) for n in range(3)), on(3, state="lost")]
    world.nodes["n1"] = Node("n1", "ready", gpus=tuple(gpus))
    assert causes(judged(world))[0] == "missing-collective"


@pytest.mark.parametrize(
    ("number", "cause", "confidence"),
    [
        (79, "gpu-lost", 0.93),
        (119, "gpu-lost", 0.93),
        (48, "gpu-ecc", 0.9),
        (94, "gpu-ecc", 0.9),
        (74, "gpu-nvlink", 0.9),
        (145, "gpu-nvlink", 0.9),
        (62, "gpu-xid", 0.85),
        (31, "gpu-xid", 0.75),
        (999, "gpu-xid", 0.6),
        (45, "gpu-xid", 0.4),
    ],
)
def test_xids_lead_to_the_part_that_failed(number: int, cause: str, confidence: float) -> None:
    found = judged(all_wait(g3=on(3, **SPINS, xids=(Xid(number, HUNG_SINCE - 1),))))
    first = found.verdicts[0]
    assert (first.cause, first.confidence) == (cause, confidence)
    assert [one.rank for one in first.culprits] == [3]
    assert f"Xid {number}" in first.summary


def test_an_xid_from_long_before_the_hang_is_no_cause() -> None:
    for at, expected in ((HUNG_SINCE - 200, "unknown"), (HUNG_SINCE - 20, "gpu-xid")):
        world = World()
        world.waiters(4, facts=FUTEX)
        hurt = on(3, **SPINS, xids=(Xid(31, at),))
        world.nodes["n1"] = Node("n1", "ready", gpus=(*(on(n, **SPINS) for n in range(3)), hurt))
        assert causes(judged(world)) == [expected]


def test_only_the_first_error_counts_and_not_its_echo() -> None:
    both = on(3, **SPINS, xids=(Xid(48, HUNG_SINCE - 2), Xid(45, HUNG_SINCE - 1)))
    world = World()
    world.waiters(4, facts=FUTEX)
    world.nodes["n1"] = Node("n1", "ready", gpus=(*(on(n, **SPINS) for n in range(3)), both))
    assert causes(judged(world)) == ["gpu-ecc"]


@pytest.mark.parametrize(
    ("fields", "confidence", "text"),
    [
        ({"ecc_now": 2, "new_errors": {"ecc": 1}}, 0.85, "has 2 memory errors"),
        ({"ecc_now": 2}, 0.4, "has 2 memory errors"),
        ({"remapped": Rows(failed=True)}, 0.4, "no spare rows"),
    ],
)
def test_errors_of_memory(fields: dict[str, Any], confidence: float, text: str) -> None:
    first = judged(all_wait(g1=on(1, **SPINS, **fields))).verdicts[0]
    assert (first.cause, first.confidence) == ("gpu-ecc", confidence)
    assert text in first.summary


def test_a_link_that_is_down_here_and_up_elsewhere() -> None:
    down = (NvLink(0, True), NvLink(1, False), NvLink(2, True), NvLink(3, True))
    first = judged(all_wait(g1=on(1, **SPINS, links=down))).verdicts[0]
    assert (first.cause, first.confidence) == ("gpu-nvlink", 0.8)
    assert "has NVLink 1 down" in first.summary
    everywhere = {**SPINS, "links": down}
    assert causes(judged(all_wait(everywhere))) == ["unknown"]


def test_the_fabric_and_growing_errors() -> None:
    first = judged(all_wait(g1=on(1, **SPINS, fabric="in progress"))).verdicts[0]
    assert (first.cause, first.confidence) == ("gpu-nvlink", 0.75)
    assert any("fabricmanager" in step for step in first.next_steps)
    first = judged(all_wait(g1=on(1, **SPINS, new_errors={"link 2 replay": 7}))).verdicts[0]
    assert (first.cause, first.confidence) == ("gpu-nvlink", 0.5)
    assert "7 new NVLink errors" in first.summary


def test_a_kernel_that_does_not_end_and_not_those_that_wait() -> None:
    world = World()
    world.waiters(3, facts=RUN)
    world.add(SYNC, RUN)
    gpus = [*(on(n, **SPINS) for n in range(3)), on(3, util=100, power_w=540, worked_at=NOW - 1)]
    world.nodes["n1"] = Node("n1", "ready", gpus=tuple(gpus))
    found = judged(world)
    first = found.verdicts[0]
    assert (first.cause, [one.rank for one in first.culprits]) == ("gpu-kernel-stuck", [3])
    assert "100 % busy at 540 W" in first.summary
    assert found.state == "progressing"
    world.nodes["n1"] = Node("n1", "ready", gpus=tuple(on(n, **SPINS) for n in range(4)))
    assert "gpu-kernel-stuck" not in causes(judged(world))


def test_a_gpu_that_is_slowed_down_in_a_job_that_gets_on() -> None:
    busy = {**BUSY, "worked_at": NOW - 1}
    hot = on(2, util=99, power_w=390, worked_at=NOW - 1, sm_mhz=345, reasons=0x48, temperature=93)
    found = judged(all_wait(busy, g2=hot))
    first = found.verdicts[0]
    assert (found.state, first.cause, first.confidence) == ("progressing", "gpu-throttled", 0.75)
    assert "slowed down to 345 MHz at 93 C: hardware slowdown" in first.summary
    assert "1980 MHz" in first.summary
    cool = msgspec.structs.replace(hot, reasons=0)
    assert causes(judged(all_wait(busy, g2=cool))) == []
    every = {**busy, "sm_mhz": 345, "reasons": 0x48}
    assert causes(judged(all_wait(every))) == []


def test_two_ranks_on_one_gpu() -> None:
    both = (GpuProcess(4010), GpuProcess(4020))
    world = all_wait(g1=on(1, **SPINS, processes=both), g2=on(2, **IDLE, processes=()))
    first = judged(world).verdicts[0]
    assert (first.cause, [one.rank for one in first.culprits]) == ("gpu-shared", [1, 2])
    assert "ranks 1-2 are all on GPU 1 (0000:1c:00.0) of n1" in first.summary


def test_a_foreign_process_is_told_only_where_nothing_else_explains() -> None:
    foreign = (GpuProcess(4010), GpuProcess(99, 8 << 30, "jupyter"))
    world = all_wait(g1=on(1, **SPINS, processes=foreign))
    first = judged(world).verdicts[0]
    assert (first.cause, first.confidence) == ("gpu-shared", 0.35)
    assert "pid 99 (jupyter, 8.0 GiB)" in first.summary
    world.add(c10d("all_reduce"), FUTEX, node="n2", process={"pid": 99})
    assert judged(world).verdicts[0].cause == "gpu-shared", "pid 99 of another node is another one"
    world = all_wait(g1=on(1, **SPINS, processes=foreign), g2=on(2, state="lost"))
    assert causes(judged(world)) == ["gpu-lost"]


def ports(**states: str) -> World:
    """Ranks 0 to 2 on three nodes, all waiting; each node has mlx5_0/1 in a state."""
    world = World()
    for number, (name, state) in enumerate(states.items()):
        world.add(c10d("all_reduce"), FUTEX, rank=number, node=name)
        nic = Nic("mlx5_0/1", "infiniband", state, "Disabled", was_up=state == "ACTIVE")
        world.nodes[name] = Node(name, "ready", nics=(nic, Nic("eth9", state="down")))
    return world


def with_port(world: World, name: str, **fields: Any) -> World:
    nic = msgspec.structs.replace(world.nodes[name].nics[0], **fields)
    world.nodes[name] = msgspec.structs.replace(world.nodes[name], nics=(nic,))
    return world


def test_a_port_that_is_down_where_the_others_are_up() -> None:
    first = judged(ports(n1="ACTIVE", n2="DOWN", n3="ACTIVE")).verdicts[0]
    assert (first.cause, first.confidence) == ("ib-port-down", 0.8)
    assert [one.node for one in first.culprits] == ["n2"]
    assert "network port mlx5_0/1 (infiniband, DOWN) of n2 is down" in first.summary
    assert any("ibstat mlx5_0" in step for step in first.next_steps)
    assert causes(judged(ports(n1="DOWN", n2="DOWN", n3="DOWN"))) == ["unknown"]
    assert causes(judged(ports(n1="ACTIVE", n2="ACTIVE", n3="ACTIVE"))) == ["unknown"]


def test_a_port_that_went_down_while_it_was_watched() -> None:
    world = ports(n1="DOWN", n2="DOWN", n3="DOWN")
    first = judged(with_port(world, "n2", was_up=True, new_errors={"link_downed": 1})).verdicts[0]
    assert (first.cause, first.confidence) == ("ib-port-down", 0.9)
    assert "went down or lost its link" in first.summary
    assert any("it was up when hangtop came" in one.text for one in first.evidence)


def test_a_port_that_came_back_is_a_weak_suspect() -> None:
    world = ports(n1="ACTIVE", n2="ACTIVE", n3="ACTIVE")
    first = judged(with_port(world, "n3", new_errors={"link_downed": 2})).verdicts[0]
    assert (first.cause, first.confidence) == ("ib-port-down", 0.5)
    assert "(infiniband, ACTIVE) of n3 lost its link and is up again" in first.summary
    assert "down" not in first.summary


def test_a_rank_outside_communication_is_the_cause_and_not_a_port() -> None:
    world = ports(n1="ACTIVE", n2="DOWN", n3="ACTIVE")
    world.add(user("evaluate", 41), SLEEP, rank=3, node="n3")
    assert causes(judged(world))[0] == "missing-collective"


def many(bad: Mapping[str, Any], fine: Mapping[str, Any], lost: int, facts: Facts = RUN) -> World:
    """64 ranks on 8 nodes that wait; of each node the first GPUs are bad."""
    world = World()
    for number in range(8):
        node = f"n{number + 1}"
        pids = [4000 + (number * 8 + n) * 10 for n in range(8)]
        world.waiters(8, facts=facts, node=node)
        gpus = (
            gpu(n, processes=(GpuProcess(pid, 60 << 30),), **(bad if n < lost else fine))
            for n, pid in enumerate(pids)
        )
        world.nodes[node] = Node(node, "ready", gpus=tuple(gpus))
    return world


@pytest.mark.parametrize(
    ("bad", "cause", "text"),
    [
        ({"state": "lost"}, "gpu-lost", "16 GPUs on n[1-8] are lost and ranks 0-1,8-9,"),
        (
            {"state": "silent"},
            "gpu-lost",
            "16 GPUs on n[1-8] do not answer: NVML's calls never return and ranks 0-1,8-9,",
        ),
        (
            {**SPINS, "xids": (Xid(48, HUNG_SINCE - 2),)},
            "gpu-ecc",
            "16 GPUs on n[1-8] have a defect of their memory (Xid 48",
        ),
        (
            {**SPINS, "xids": (Xid(13, HUNG_SINCE - 2),)},
            "gpu-xid",
            "16 GPUs on n[1-8] have reported an error (Xid 13",
        ),
    ],
)
def test_gpus_that_fail_alike_are_told_of_at_once(
    bad: Mapping[str, Any], cause: str, text: str
) -> None:
    found = judged(many(bad, SPINS, 2, FUTEX))
    told = [one for one in found.verdicts if one.cause == cause]
    assert len(told) == 1
    assert text in told[0].summary
    assert "are on them" in told[0].summary
    blamed = [one.rank for one in told[0].culprits]
    assert blamed == [n for n in range(64) if n % 8 < 2]
    assert "the same for the other GPUs, on n[1-8]" in told[0].next_steps


def test_gpus_that_fail_differently_are_told_of_apart() -> None:
    world = many({"state": "lost"}, SPINS, 1)
    node = world.nodes["n3"]
    pids = node.gpus[5].processes
    broken = gpu(5, state="reset-required", processes=pids)
    gpus = (*node.gpus[:5], broken, *node.gpus[6:])
    world.nodes["n3"] = msgspec.structs.replace(node, gpus=gpus)
    found = [one for one in judged(world).verdicts if one.cause == "gpu-lost"]
    assert [len(one.culprits) for one in found] == [8, 1]
    assert "GPU 5 " in found[1].summary
    assert "on n3 needs to be reset and rank 21 (n3, pid 4210) is on it" in found[1].summary


def test_who_is_on_another_gpu_that_fails_is_not_told_as_waiting() -> None:
    world = many({"state": "lost"}, SPINS, 1, FUTEX)
    node = world.nodes["n1"]
    bad = msgspec.structs.replace(node.gpus[1], ecc_now=3, new_errors={"ecc": 1})
    world.nodes["n1"] = msgspec.structs.replace(node, gpus=(node.gpus[0], bad, *node.gpus[2:]))
    first, second, *_ = judged(world).verdicts
    assert (first.cause, second.cause) == ("gpu-lost", "gpu-ecc")
    assert first.victims == second.victims
    for one in (first, second):
        assert f"; ranks {fold(one.victims)} wait in " in one.summary


def test_counts_of_errors_do_not_tell_gpus_apart() -> None:
    world = many(SPINS, SPINS, 0)
    for count, name in enumerate(sorted(world.nodes), 3):
        node = world.nodes[name]
        bad = msgspec.structs.replace(node.gpus[0], ecc_now=count, new_errors={"ecc": 1})
        world.nodes[name] = msgspec.structs.replace(node, gpus=(bad, *node.gpus[1:]))
    (told,) = [one for one in judged(world).verdicts if one.cause == "gpu-ecc"]
    text = "8 GPUs on n[1-8] have memory errors that could not be corrected and ranks 0,8,16,"
    assert text in told.summary


def test_gpus_slowed_down_for_one_reason_are_told_of_at_once() -> None:
    # GIVEN 8 nodes, two GPUs of each of which are hot
    busy = {**BUSY, "worked_at": NOW - 1, "sm_mhz": 1980, "reasons": 0}
    world = many({**busy, "sm_mhz": 345, "reasons": 0x48, "temperature": 93}, busy, 2)
    node = world.nodes["n4"]
    cooler = msgspec.structs.replace(node.gpus[1], sm_mhz=360, temperature=91)
    world.nodes["n4"] = msgspec.structs.replace(node, gpus=(node.gpus[0], cooler, *node.gpus[2:]))
    told = [one for one in judged(world).verdicts if one.cause == "gpu-throttled"]
    assert len(told) == 1
    assert "16 GPUs on n[1-8], of ranks 0-1,8-9," in told[0].summary
    text = "are slowed down to 345-360 MHz at 91-93 C: hardware slowdown"
    assert text in told[0].summary
    assert "their peers run at 1980 MHz" in told[0].summary
