"""GPUs and network ports of a node.

Facts only; `analysis.devices` reads them. A value that a GPU, its driver or pynvml does not have is
None, and `Gpu.missing` names it with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct, field

from hangtop_core.text.clean import Count, Text

Counters = Annotated[dict[Text, Count], Meta(max_length=64)]


class NvLink(Struct, frozen=True, gc=False, array_like=True):
    """One NVLink of a GPU."""

    number: Count
    up: bool | None = None
    version: int | None = None
    errors: Counters = field(default_factory=dict)
    """Errors since the driver was loaded, without zeros: replay, recovery, crc_flit, ..."""


class GpuProcess(Struct, frozen=True, gc=False):
    """A process that computes on a GPU, by its pid in the outermost namespace."""

    pid: Annotated[int, Meta(ge=0, le=2**32)]
    memory: Count | None = None
    comm: Text | None = None
    """None where the probe does not see such a process."""


class MigDevice(Struct, frozen=True, gc=False):
    """A MIG part of a GPU that is used like a GPU."""

    slot: Count
    uuid: Text | None = None
    gpu_instance: Count | None = None
    compute_instance: Count | None = None
    memory_used: Count | None = None
    memory_total: Count | None = None
    processes: Annotated[tuple[GpuProcess, ...], Meta(max_length=64)] | None = None


class Rows(Struct, frozen=True, gc=False):
    """Rows of GPU memory that were replaced by spare ones."""

    corrected: Count = 0
    uncorrected: Count = 0
    pending: bool = False
    """Whether further rows will be replaced, which takes a reset."""
    failed: bool = False
    """Whether a row could not be replaced because no spare row was left."""


class Xid(Struct, frozen=True, gc=False, array_like=True):
    """An error that the driver reported, by NVIDIA's number, and when."""

    number: Count
    at: float


class Gpu(Struct, frozen=True, gc=False):
    """One GPU. All fields but its index may be missing."""

    index: int
    """Index in the order of NVML and nvidia-smi: by PCI address."""
    state: Text = "ok"
    """ok; lost, reset-required, error (NVML says so); silent (its calls never return); gone."""
    error: Text | None = None
    at: float = 0.0
    """When it was last read."""
    name: Text | None = None
    uuid: Text | None = None
    serial: Text | None = None
    bus_id: Text | None = None
    """PCI address as the kernel writes it: 0000:1b:00.0."""
    numa: int | None = None
    util: Count | None = None
    """Percent of the last second or so in which any kernel ran, waiting kernels included."""
    memory_util: Count | None = None
    power_w: Count | None = None
    power_limit_w: Count | None = None
    energy_j: Count | None = None
    sm_mhz: Count | None = None
    sm_max_mhz: Count | None = None
    memory_mhz: Count | None = None
    reasons: Count | None = None
    """Why clocks are not higher: bits of nvmlClocksEventReasons."""
    temperature: Count | None = None
    memory_used: Count | None = None
    memory_total: Count | None = None
    ecc_now: Count | None = None
    """Uncorrected memory errors since the driver was loaded."""
    ecc_ever: Count | None = None
    ecc_corrected: Count | None = None
    remapped: Rows | None = None
    pcie_gen: Count | None = None
    pcie_max_gen: Count | None = None
    pcie_width: Count | None = None
    pcie_max_width: Count | None = None
    pcie_tx_kb: Count | None = None
    """Sent data in KB/s over 20 ms."""
    pcie_rx_kb: Count | None = None
    pcie_replays: Count | None = None
    nvlink_kb: Count | None = None
    """KiB of data over all NVLinks, in both directions, since the driver was loaded."""
    links: Annotated[tuple[NvLink, ...], Meta(max_length=64)] = ()
    fabric: Text | None = None
    """Registration with the NVSwitch fabric: completed, in progress, ...; None without one."""
    mig: bool | None = None
    mig_devices: Annotated[tuple[MigDevice, ...], Meta(max_length=64)] = ()
    processes: Annotated[tuple[GpuProcess, ...], Meta(max_length=64)] | None = None
    missing: Annotated[dict[Text, Text], Meta(max_length=64)] = field(default_factory=dict)
    """Names of the values that cannot be read, with the reasons."""
    xids: Annotated[tuple[Xid, ...], Meta(max_length=64)] = ()
    """Xids that occurred while hangtop was attached; the kernel log has the earlier ones."""
    worked_at: float | None = None
    """When it was last seen to do more than wait, see `devices`. Not reported by the node."""
    power_peak_w: int | None = None
    """The highest power since hangtop attached, in watts."""
    new_errors: Mapping[str, int] = field(default_factory=dict)
    """Growth of error counters since hangtop attached: `link 3 crc_data`, `ecc`, `pcie replays`."""


class Nic(Struct, frozen=True, gc=False):
    """One port of a network device."""

    name: Text
    """mlx5_0/1 for port 1 of an RDMA device, else the interface."""
    kind: Text = "ethernet"
    """infiniband, roce or ethernet."""
    state: Text | None = None
    """State: ACTIVE, DOWN, INIT, ARMED for RDMA ports; up, down, ... for interfaces; silent,
    gone."""
    physical: Text | None = None
    rate: Text | None = None
    numa: int | None = None
    interfaces: Annotated[tuple[Text, ...], Meta(max_length=16)] = ()
    """Ethernet or IPoIB interfaces of this RDMA device."""
    rdma: Text | None = None
    """The RDMA device that this interface belongs to."""
    sent: Count | None = None
    """Bytes; for RDMA ports RDMA traffic included, which interfaces do not count."""
    received: Count | None = None
    errors: Counters = field(default_factory=dict)
    new_errors: Mapping[str, int] = field(default_factory=dict)
    """Growth of each counter since hangtop attached."""
    was_up: bool = False
    """Whether it was up at any time since hangtop attached."""
    moved_at: float | None = None
    """When the byte counters last grew."""


class Nvml(Struct, frozen=True, gc=False):
    """NVIDIA's driver on a node, or why its GPUs cannot be read."""

    driver: Text | None = None
    cuda: Text | None = None
    """Highest CUDA version the driver supports."""
    gpus: Count | None = None
    missing: Text | None = None
    """Why the library cannot be loaded."""
    error: Text | None = None


BUSY_SHARE = 0.5
"""Share of its power limit above which a GPU computes: a kernel that only polls memory draws less.

This is an estimate from reports of stalled jobs (100 % busy well under the power of training). On
an H200, waiting kernels of NCCL 2.28 drew 121 to 124 of 700 W and used 0 % of the memory's time.
"""
BUSY_MEMORY = 10
"""Percent of the time with memory traffic above which a GPU does more than poll a flag."""
UP = frozenset({"ACTIVE", "up"})
"""States of a port that carries data."""
