"""What GPUs do, which rank is on which, Xids from both sources: pure, on built facts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hangtop_core.analysis.gpus import (
    Slots,
    doing,
    down,
    reasons,
    slow,
    troubles,
    usual_clock,
    visible,
)
from hangtop_core.analysis.xids import events
from hangtop_core.model.node.hardware import Gpu, GpuProcess, MigDevice, NvLink, Xid
from hangtop_core.model.snapshot import KernelLine, Node
from support.build import NOW, World
from support.gpus import BUSY, IDLE, SPINS, gpu
from support.situations import c10d, thread


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (BUSY, "computes"),
        (SPINS, "spins"),
        (IDLE, "idle"),
        ({"util": 100, "power_w": 380, "power_peak_w": 690}, "spins"),
        ({"util": 100, "power_w": 380, "power_peak_w": 400}, "computes"),
        ({"util": 60, "power_w": 200}, "computes"),
        ({**SPINS, "memory_util": 40}, "computes"),
        ({**SPINS, "memory_util": 1}, "spins"),
        ({"util": 100, "power_w": 118, "power_limit_w": None}, "busy"),
        ({"util": None, "power_w": 118}, "unknown"),
        ({"util": None, "power_w": 118, "mig": True}, "MIG"),
        ({"state": "lost", **BUSY}, "broken"),
    ],
)
def test_what_a_gpu_does_is_told_by_utilisation_with_power(
    fields: dict[str, Any], expected: str
) -> None:
    assert doing(gpu(0, **fields)) == expected


def test_troubles_are_told_in_few_words() -> None:
    links = (NvLink(0, True), NvLink(7, False))
    one = gpu(0, links=links, ecc_now=2, reasons=0x41, new_errors={"link 0 crc_data": 3, "ecc": 1})
    assert troubles(one) == (
        "NVLink 7 down",
        "2 ECC",
        "too hot (hardware slowdown)",
        "3 new NVLink errors",
    )
    assert reasons(one) == ("too hot (hardware slowdown)", "idle")
    assert troubles(gpu(0, state="lost", error="GPU is lost")) == ("lost: GPU is lost",)
    assert troubles(gpu(0)) == ()


def test_links_that_are_all_down_are_how_the_machine_is_built() -> None:
    assert down(gpu(0, links=(NvLink(0, False), NvLink(1, False)))) == ()


def test_slow_is_far_below_the_peers() -> None:
    assert usual_clock([345, 1980, 1980, 1755]) == 1980
    assert usual_clock([345, 1980]) == 1980, "no GPU has a clock between them"
    assert usual_clock([345, 345, 345, 1980]) == 345
    assert slow(gpu(0, sm_mhz=345), 1980)
    assert not slow(gpu(0, sm_mhz=1800), 1980)
    assert not slow(gpu(0, sm_mhz=345), usual_clock([]))


class TestSlots:
    """Which rank is on which GPU."""

    def rank(self, env: dict[str, str], **more: Any) -> Any:
        world = World()
        return world.add(
            c10d("all_reduce"),
            ("R", None, None, None, None),
            rank=2,
            process={"pid": 4711, "env": {"RANK": "2", **env}, **more},
        )

    def node(self, *gpus: Gpu) -> Node:
        return Node("n1", gpus=gpus or tuple(gpu(n) for n in range(4)))

    def places(self, rank: Any, node: Node) -> list[tuple[int, str | None, str]]:
        return [(slot.gpu.index, slot.part, slot.how) for slot in Slots([node]).of(rank)]

    def test_by_its_process(self) -> None:
        node = self.node(gpu(0), gpu(1, processes=(GpuProcess(4711), GpuProcess(1))))
        found = self.places(self.rank({"CUDA_VISIBLE_DEVICES": "0"}), node)
        assert found == [(1, None, "process")]

    def test_by_a_process_on_a_mig_device(self) -> None:
        parts = (MigDevice(0, "MIG-a"), MigDevice(1, "MIG-b", processes=(GpuProcess(4711),)))
        node = self.node(gpu(0, mig=True, mig_devices=parts, processes=(GpuProcess(4711),)))
        assert self.places(self.rank({}), node) == [(0, "MIG-b", "process")]

    @pytest.mark.parametrize(
        ("told", "local", "expected"),
        [
            ("3", "0", [(3, None, "environment")]),
            ("GPU-0002", "0", [(2, None, "environment")]),
            ("MIG-aaaa", "0", [(1, "MIG-aaaa-1", "environment")]),
            ("2,3", "1", [(3, None, "local-rank")]),
            ("2,9,3", "2", [(2, None, "environment")]),
            ("", "0", []),
            ("0", "0", [(0, None, "environment")]),
            ("0", "3", []),
            ("GPU-", "0", []),
        ],
    )
    def test_by_its_environment(
        self, told: str, local: str, expected: list[tuple[int, str | None, str]]
    ) -> None:
        parts = (MigDevice(0, "MIG-aaaa-1"),)
        gpus = [gpu(n, uuid=f"GPU-000{n}-x") for n in range(4)]
        gpus[1] = msgspec.structs.replace(gpus[1], mig_devices=parts)
        env = {"CUDA_VISIBLE_DEVICES": told, "LOCAL_RANK": local}
        assert self.places(self.rank(env), self.node(*gpus)) == expected

    def test_the_local_rank_alone_counts_only_where_cuda_is_at_work(self) -> None:
        env = {"LOCAL_RANK": "2"}
        assert self.places(self.rank(env), self.node()) == []
        cuda = (thread(4720, ("S", None, None, None, None), "cuda-EvtHandlr"),)
        found = self.places(self.rank(env, threads=cuda), self.node())
        assert found == [(2, None, "local-rank")]

    def test_a_name_that_fits_two_is_none(self) -> None:
        gpus = [gpu(0, uuid="GPU-11"), gpu(1, uuid="GPU-12")]
        assert visible("GPU-1", gpus) == []


def test_xids_of_both_sources_are_told_once() -> None:
    lines = (
        KernelLine(NOW - 60, "NVRM: Xid (PCI:0000:1c:00): 79, pid=4711, GPU has fallen off."),
        KernelLine(NOW - 55, "NVRM: Xid (PCI:0000:1b:00): 45, pid='<unknown>', Ch 00000008"),
        KernelLine(NOW - 50, "NVRM: Xid (PCI:0000:99:00): 13, a GPU that is not known"),
        KernelLine(NOW - 40, "NVRM: GPU at PCI:0000:1c:00: GPU-1"),
    )
    seen = gpu(1, xids=(Xid(79, NOW - 59), Xid(154, NOW - 50)))
    found = events(Node("n1", gpus=(gpu(0), seen), kernel_lines=lines))
    assert [(one.number, one.kind, one.pid) for one in found[1]] == [
        (79, "lost", 4711),
        (154, "engine", None),
    ]
    assert [(one.number, one.kind, one.pid) for one in found[0]] == [(45, "echo", None)]
    assert found[1][0].text == "Xid 79, the GPU has fallen off the bus"
    assert set(found) == {0, 1}
