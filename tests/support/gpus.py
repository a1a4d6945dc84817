"""Builders of GPUs and ports for synthetic snapshots. No reading here is of a real GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from hangtop_core.model.node.hardware import Gpu, GpuProcess, Nic, NvLink, Nvml, Xid

if TYPE_CHECKING:
    from hangtop_core.model.updates import Update

replace = msgspec.structs.replace

BUSY = {"util": 97, "power_w": 610}
SPINS = {"util": 100, "power_w": 118}
IDLE = {"util": 0, "power_w": 88}


def gpu(index: int, **fields: Any) -> Gpu:
    """A GPU that is well, at work unless told otherwise."""
    defaults: dict[str, Any] = {
        "name": "Double of a GPU",
        "uuid": f"GPU-{index:04d}",
        "bus_id": f"0000:{0x1B + index:02x}:00.0",
        "serial": f"16501230000{index}",
        "power_limit_w": 700,
        "sm_mhz": 1980,
        "sm_max_mhz": 1980,
        "temperature": 45,
        "memory_used": 61_000_000_000,
        "memory_total": 85_520_809_984,
        "links": tuple(NvLink(number, True, 4) for number in range(4)),
        **BUSY,
    }
    return Gpu(index, **{**defaults, **fields})


def with_gpus(update: Update, each: int = 2) -> Update:
    """A recording whose nodes have GPUs that were made up: most spin, one is lost, one idle."""
    taken: dict[str, list[int]] = {}
    for job in update.snapshot.jobs:
        for rank in job.ranks:
            taken.setdefault(rank.node, []).append(rank.process.pid)
    nodes = []
    for place, node in enumerate(update.snapshot.nodes):
        pids = taken.get(node.name, [])
        gpus = [
            gpu(
                index,
                **SPINS,
                at=update.snapshot.at - 0.5,
                power_peak_w=640,
                processes=tuple(
                    GpuProcess(pid, 60 << 30, "python3") for pid in pids[index : index + 1]
                ),
            )
            for index in range(max(each, len(pids)))
        ]
        if place == 0:
            gpus[0] = replace(gpus[0], **IDLE, worked_at=update.snapshot.at - 130.0)
            gpus[1] = replace(
                gpus[1],
                state="lost",
                error="GPU is lost",
                xids=(Xid(79, update.snapshot.at - 131),),
            )
        ports = (
            Nic("mlx5_0/1", "infiniband", "ACTIVE", "LinkUp", "400 Gb/sec (4X NDR)", was_up=True),
            Nic("eth0", "ethernet", "up", None, "100000 Mb/s", sent=1 << 34, received=1 << 33),
        )
        about = Nvml("575.51.03", "12.9", len(gpus))
        nodes.append(replace(node, gpus=tuple(gpus), nics=ports, nvml=about))
    return replace(update, snapshot=replace(update.snapshot, nodes=tuple(nodes)))
