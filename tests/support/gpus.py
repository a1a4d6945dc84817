"""Builders of GPUs and ports for synthetic snapshots. No reading here is of a real GPU."""

from __future__ import annotations

from typing import Any

from hangtop_core.hardware import Gpu, NvLink

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
