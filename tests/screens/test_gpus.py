"""The screen of GPUs, on recordings of real jobs; most GPUs in them are made up (support/gpus)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hangtop.terminal.spans import plain
from hangtop.views.nodes.gpu import gpu_items
from hangtop.views.nodes.gpus import gpu_rows
from hangtop_core.model.node.hardware import GpuProcess, MigDevice, Nic, Nvml
from hangtop_core.model.snapshot import Fact, Node
from support.build import World
from support.gpus import IDLE, SPINS, gpu, with_gpus
from support.player import app_for, compare, keys
from support.record import load
from support.situations import RUN, c10d

SIZES = [(80, 24), (120, 36), (200, 50)]


async def draw(update: Any, size: tuple[int, int], *pressed: str) -> str:
    async with app_for(update).run_test(size=size) as pilot:
        return await keys(pilot, "6", *pressed)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_gpus_that_spin_and_one_that_is_lost(
    size: tuple[int, int], update_screens: bool
) -> None:
    text = await draw(with_gpus(load("skip")), size)
    compare(f"skip-gpus-{size[0]}x{size[1]}", text, update_screens)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_a_real_gpu_that_ranks_share(size: tuple[int, int], update_screens: bool) -> None:
    text = await draw(load("nccl-skip"), size)
    compare(f"nccl-skip-gpus-{size[0]}x{size[1]}", text, update_screens)


async def test_nodes_in_one_row_each(update_screens: bool) -> None:
    text = await draw(with_gpus(load("cluster"), 8), (120, 36), "t")
    compare("cluster-gpus-by-node-120x36", text, update_screens)


async def test_without_a_gpu_it_says_why() -> None:
    update = load("skip")
    text = await draw(update, (120, 36))
    assert "No GPU to show." in text
    assert "node1  no NVIDIA driver on this node" in text
    nodes = tuple(
        msgspec.structs.replace(one, nvml=Nvml(error="NVML: Driver Not Loaded (9)"))
        for one in update.snapshot.nodes
    )
    snapshot = msgspec.structs.replace(update.snapshot, nodes=nodes)
    text = await draw(msgspec.structs.replace(update, snapshot=snapshot), (120, 36))
    assert "unreadable" in text
    assert "NVML: Driver Not Loaded (9)" in text


async def test_keys_of_the_screen() -> None:
    app = app_for(with_gpus(load("skip")))
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        for key, expected in (
            ("6", "▸ node1   1 1    lost"),
            ("n", "▸ node1   0 0    idle"),
            ("n", "▸ node1   1 1    lost"),
            ("t", "▸ node1 4 GPUs 0-3  2 spins"),
            ("enter", "▸ node1   0 0    idle"),
        ):
            assert expected in await keys(pilot, key), key
        text = await keys(pilot, "slash", *"does=spins", "enter")
        assert "▸ node1   2 2    spins" in text
        assert "lost  " not in text.split("PORTS")[0].split("GPU  ")[0]
        await keys(pilot, "enter")
        assert app.current_mode == "rank"
        assert app.state.rank is not None
        assert app.state.rank.rank == 2


async def test_all_of_a_gpu_is_shown_while_the_table_has_lines_to_spare() -> None:
    update = with_gpus(load("skip"))
    (node,) = update.snapshot.nodes
    parts = tuple(MigDevice(slot, f"MIG-{slot}") for slot in range(7))
    more = {"mig_devices": parts, "memory_mhz": 2619, "pcie_gen": 5, "ecc_now": 0}
    last = msgspec.structs.replace(node.gpus[-1], fabric="in progress", **more)
    node = msgspec.structs.replace(node, gpus=(*node.gpus[:-1], last))
    update = msgspec.structs.replace(
        update, snapshot=msgspec.structs.replace(update.snapshot, nodes=(node,))
    )
    app = app_for(update)
    async with app.run_test(size=(120, 36)) as pilot:
        tall = await keys(pilot, "6", "n")
        assert "MIG-6" in tall
        assert "driver    575.51.03" in tall
        # Another GPU, of which less is known, does not move the panes again.
        other = await keys(pilot, "k")
        assert "MIG-6" not in other
        assert _frames(other) == _frames(tall)


def _frames(text: str) -> list[int]:
    return [at for at, line in enumerate(text.splitlines()) if line[:1] in "┌┏"]


def rows_of(*gpus: Any, nics: tuple[Nic, ...] = (), **node: Any) -> list[Any]:
    world = World()
    for number, one in enumerate(gpus):
        pid = 4000 + number
        world.add(c10d("all_reduce"), RUN, rank=number, process={"pid": pid})
        assert one.index == number
    placed = tuple(
        msgspec.structs.replace(one, processes=(GpuProcess(4000 + one.index),)) for one in gpus
    )
    world.nodes["n1"] = Node("n1", "ready", gpus=placed, nics=nics, **node)
    snapshot = world.snapshot()
    return gpu_rows(snapshot, snapshot.jobs[0], folded=False)


def test_what_is_wrong_comes_first_then_what_differs() -> None:
    rows = rows_of(
        gpu(0, **SPINS),
        gpu(1, **IDLE),
        gpu(2, **SPINS),
        gpu(3, **SPINS, ecc_now=1),
        gpu(4, **SPINS),
    )
    assert [row.gpus[0].index for row in rows] == [3, 1, 0, 2, 4]
    assert [row.level for row in rows] == [0, 1, 2, 2, 2]
    assert rows[1].ranks == (1,)


def test_what_is_broken_comes_before_what_has_errors_and_what_is_only_slow() -> None:
    rows = rows_of(
        gpu(0, **SPINS, reasons=0x40),
        gpu(1, **SPINS, ecc_now=1, reasons=0x40),
        gpu(2, state="lost", error="GPU is lost"),
    )
    assert [row.gpus[0].index for row in rows] == [2, 1, 0]


def test_bytes_of_pcie_are_written_for_people_and_what_is_not_read_is_not_0() -> None:
    def told(**fields: object) -> list[str]:
        row = rows_of(gpu(0, **SPINS, pcie_gen=5, pcie_max_gen=5, **fields))[0]
        lines = [plain(line) for item in gpu_items(row, 0.0) for line in item.lines]
        return [" ".join(line.split(None, 1)) for line in lines]

    flows = {"pcie_width": 16, "pcie_max_width": 16, "pcie_tx_kb": 1 << 21, "pcie_rx_kb": 900}
    every = told(**flows, pcie_replays=0, ecc_now=0, ecc_ever=0)
    assert "PCIe gen 5 of 5, x16 of 16  2.0 GiB/s out, 900 KiB/s in  0 replays" in every
    few = told(pcie_width=16, pcie_max_width=16, ecc_now=0)
    assert "PCIe gen 5 of 5, x16 of 16" in few
    assert "ECC 0 not corrected since the driver came" in few


def test_everything_that_is_known_of_a_gpu_is_told() -> None:
    full = gpu(
        0, **SPINS, reasons=0x20, ecc_now=2, ecc_ever=7, ecc_corrected=9,
        nvlink_kb=7 << 19, memory_mhz=2619, pcie_gen=4, pcie_max_gen=5, pcie_width=8,
        pcie_max_width=16, pcie_replays=3, fabric="in progress", missing={"energy_j": "no"},
    )  # fmt: skip
    row = rows_of(full, nvml=Nvml("575.1", "12.9", 1))[0]
    text = "\n".join(plain(line) for item in gpu_items(row, 0.0) for line in item.lines)
    for word in (
        "busy all the time at little power",
        "118 of 700 W",
        "1980 of 1980 MHz: too hot (driver)",
        "56.8 GiB of 79.6 GiB",
        "gen 4 of 5, x8 of 16",
        "3 replays",
        "4 of 4 up",
        "in progress",
        "2 not corrected since the driver came, 7 ever, 9 corrected",
        "3.5 GiB in all",
        "memory 2619 MHz",
        "energy_j: no",
        "575.1, CUDA 12.9",
    ):
        assert word in text, word


def test_a_gpu_in_mig_mode_says_so_and_whose_its_parts_are() -> None:
    part = MigDevice(1, "MIG-b", processes=(GpuProcess(4711, 1 << 30, "python3"),))
    row = rows_of(gpu(0, util=None, mig=True, mig_devices=(part,), worked_at=0.0))[0]
    text = " ".join(plain(line) for item in gpu_items(row, 0.0) for line in item.lines)
    assert list(row.does) == ["MIG"]
    for word in ("split into the MIG devices", "MIG-b", "pid 4711", "does more than wait now"):
        assert word in text, word


def test_a_node_whose_gpus_cannot_be_read_is_a_row() -> None:
    world = World()
    world.waiters(1)
    fact = {"nvml": Fact(True)}
    world.nodes["n1"] = Node("n1", "ready", nvml=Nvml(error="NVML hangs"), capabilities=fact)
    snapshot = world.snapshot()
    (row,) = gpu_rows(snapshot, snapshot.jobs[0], folded=False)
    assert (row.level, row.trouble, row.gpus) == (0, "NVML hangs", ())
