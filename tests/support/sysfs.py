"""Trees as sysfs has them for network ports, written in the form that mlx5 ports have there.

The form is that of Documentation/ABI/stable/sysfs-class-infiniband; the numbers are made up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def write(folder: Path, **files: object) -> None:
    """Write small files, each with a newline at its end."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / name).write_text(f"{value}\n")


def rdma_port(root: Path, device: str, *, state: str = "4: ACTIVE", **more: object) -> Path:
    """A port of an RDMA device; `more` goes among its counters. Return its folder."""
    where = root / "class/infiniband" / device
    port = where / "ports/1"
    up = state.startswith("4")
    write(port, state=state, phys_state="5: LinkUp" if up else "3: Disabled")
    layer = more.pop("link_layer", "InfiniBand")
    write(port, rate="400 Gb/sec (4X NDR)", link_layer=layer)
    write(port / "counters", port_xmit_data=1000, port_rcv_data=2000, link_downed=0, symbol_error=0)
    write(port / "counters", **more)
    write(port / "hw_counters", out_of_sequence=0, local_ack_timeout_err=0, lifespan=10)
    write(where / "device", numa_node=1)
    return port


def interface(root: Path, name: str, *, state: str = "up", speed: int = 100000) -> Path:
    """An Ethernet interface of a device. Return its folder."""
    where = root / "class/net" / name
    write(where, operstate=state, speed=speed, carrier_down_count=3)
    write(where / "statistics", tx_bytes=10, rx_bytes=20, rx_errors=0, rx_dropped=7, collisions=0)
    write(where / "device", numa_node=-1)
    return where
