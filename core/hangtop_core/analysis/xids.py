"""Xids: errors of GPUs as NVIDIA's driver numbers them, from NVML and from the kernel log.

Numbers and names are those of nverror.h of NVIDIA's open kernel modules and of NVIDIA's catalogue
of Xids (docs.nvidia.com/deploy/xid-errors); hangtop has seen none of them happen.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from hangtop_core.logs.meaning import kernel_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hangtop_core.model.node.facts import KernelLine
    from hangtop_core.model.node.hardware import Gpu
    from hangtop_core.model.snapshot import Node

Class = Literal["lost", "ecc", "nvlink", "engine", "program", "echo", "other"]
"""What part failed. `program`: most often its own doing; `echo`: only follows another error."""

SAME_S = 10.0
"""Seconds within which NVML and the kernel log tell of one error."""


class Kind(Struct, frozen=True, gc=False):
    """What an Xid means."""

    kind: Class
    text: str


KINDS: Mapping[int, Kind] = {
    8: Kind("engine", "the GPU stopped processing"),
    13: Kind("program", "graphics engine exception"),
    31: Kind("program", "memory page fault of the GPU"),
    32: Kind("engine", "invalid or damaged stream of commands"),
    43: Kind("echo", "a program's work on the GPU was stopped"),
    45: Kind("echo", "cleaned up after another error"),
    48: Kind("ecc", "memory error that cannot be corrected (double bit ECC)"),
    54: Kind("lost", "auxiliary power is not connected"),
    61: Kind("engine", "internal micro-controller breakpoint"),
    62: Kind("engine", "internal micro-controller halt"),
    63: Kind("ecc", "a row or page of memory is to be replaced"),
    64: Kind("ecc", "replacing a row or page of memory failed"),
    69: Kind("program", "graphics engine class error"),
    74: Kind("nvlink", "NVLink error"),
    79: Kind("lost", "the GPU has fallen off the bus"),
    92: Kind("ecc", "high rate of corrected memory errors"),
    94: Kind("ecc", "contained memory error"),
    95: Kind("ecc", "uncontained memory error"),
    109: Kind("engine", "context switch timeout"),
    119: Kind("lost", "the GPU's system processor (GSP) does not answer"),
    120: Kind("lost", "error of the GPU's system processor (GSP)"),
    121: Kind("nvlink", "error of the link to the CPU (C2C)"),
    136: Kind("nvlink", "NVLink training failed"),
    137: Kind("nvlink", "NVLink fault on access to a peer's memory"),
    140: Kind("ecc", "memory error that cannot be recovered"),
    **{number: Kind("nvlink", "NVLink error") for number in range(144, 151)},
    154: Kind("engine", "the GPU needs to be reset"),
}
_UNKNOWN = Kind("other", "an error NVIDIA's catalogue of Xids explains")


class Event(Struct, frozen=True, gc=False):
    """One Xid of one GPU."""

    gpu: int
    number: int
    at: float
    pid: int | None = None
    """The process that was at work, where the kernel log says."""
    line: str | None = None
    """What the kernel log says."""

    @property
    def kind(self) -> Class:
        """What part failed."""
        return KINDS.get(self.number, _UNKNOWN).kind

    @property
    def text(self) -> str:
        """`Xid 79, the GPU has fallen off the bus`."""
        return f"Xid {self.number}, {KINDS.get(self.number, _UNKNOWN).text}"


def events(node: Node, more: Iterable[KernelLine] = ()) -> Mapping[int, tuple[Event, ...]]:
    """All known Xids of a node, by GPU, oldest first; what both sources tell only once.

    ``more`` are lines of its kernel that were found elsewhere.
    """
    found: dict[int, list[Event]] = defaultdict(list)
    for line in (*node.kernel_lines, *more):
        told = kernel_lines.read(line)
        if told is None or told.kind != "xid" or told.number is None:
            continue
        gpu = _by_address(node.gpus, told.device)
        if gpu is not None:
            event = Event(gpu.index, told.number, line.at, told.pid, line.text)
            found[gpu.index].append(event)
    for gpu in node.gpus:
        known = [(one.number, one.at) for one in found[gpu.index]]
        found[gpu.index] += [
            Event(gpu.index, xid.number, xid.at)
            for xid in gpu.xids
            if not any(n == xid.number and abs(at - xid.at) < SAME_S for n, at in known)
        ]
    return {
        index: tuple(sorted(some, key=lambda one: one.at)) for index, some in found.items() if some
    }


def _by_address(gpus: tuple[Gpu, ...], address: str) -> Gpu | None:
    """The GPU at `0000:1b:00`, as the kernel log writes it, without the function."""
    domain, _, place = address.lower().partition(":")
    wanted = f"{domain[-4:].rjust(4, '0')}:{place.partition('.')[0]}"
    return next((gpu for gpu in gpus if (gpu.bus_id or "").partition(".")[0] == wanted), None)
