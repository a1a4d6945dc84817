"""What GPUs do, what is wrong with them, and which rank is on which."""

from __future__ import annotations

from collections import defaultdict
from statistics import median_high
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from hangtop_core.analysis.activity import uses_cuda
from hangtop_core.model.node.hardware import BUSY_MEMORY, BUSY_SHARE, Gpu
from hangtop_core.text.clean import clean

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from hangtop_core.model.snapshot import Job, Node, Rank

Doing = Literal["computes", "spins", "busy", "idle", "broken", "MIG", "unknown"]
"""`busy`: kernels run, but without its power it cannot be told whether they only wait. `MIG`: it is
split into MIG devices, and NVML tells no utilisation of it."""

SPIN_UTIL = 95
"""Percent from which kernels are there all the time: a waiting one keeps its GPU so."""
IDLE_UTIL = 5
"""Percent up to which a GPU is called idle: a display, or a monitor, takes some."""
PEAK_SHARE = 0.6
"""Share of the highest power seen below which a GPU that is always busy does not compute."""

REASONS: tuple[tuple[int, str], ...] = (
    (0x08, "hardware slowdown"),
    (0x40, "too hot (hardware slowdown)"),
    (0x80, "power brake"),
    (0x20, "too hot (driver)"),
    (0x04, "power cap"),
    (0x10, "sync boost"),
    (0x02, "clocks set by the user"),
    (0x01, "idle"),
)
"""Bits of nvmlClocksEventReasons, the worst first."""
SLOWDOWN = 0x08 | 0x20 | 0x40 | 0x80
"""Those that mean that something is wrong: heat or power supply."""


def doing(gpu: Gpu) -> Doing:
    """What a GPU does, by utilisation together with power.

    A communication kernel that waits for its peers keeps the GPU busy by 100 %, at little more
    power than an idle one and hardly touching its memory: utilisation alone tells nothing.
    """
    if gpu.state != "ok":
        return "broken"
    if gpu.util is None:
        return "MIG" if gpu.mig else "unknown"
    if gpu.util <= IDLE_UTIL:
        return "idle"
    if gpu.power_w is None or not gpu.power_limit_w:
        return "busy"
    low = gpu.power_w < BUSY_SHARE * gpu.power_limit_w
    fell = gpu.power_w < PEAK_SHARE * (gpu.power_peak_w or 0)
    polls = (gpu.memory_util or 0) < BUSY_MEMORY
    return "spins" if gpu.util >= SPIN_UTIL and polls and (low or fell) else "computes"


def reasons(gpu: Gpu) -> tuple[str, ...]:
    """Why its clocks are not higher, the worst reason first."""
    bits = gpu.reasons or 0
    return tuple(text for bit, text in REASONS if bits & bit)


def down(gpu: Gpu) -> tuple[int, ...]:
    """NVLinks that are down, where others of the GPU are up: all down may be how it is built."""
    up = [one.number for one in gpu.links if one.up]
    return tuple(one.number for one in gpu.links if one.up is False) if up else ()


def troubles(gpu: Gpu) -> tuple[str, ...]:
    """What is wrong with a GPU, in few words, the worst first."""
    found: list[str] = []
    if gpu.state != "ok":
        found.append(clean(f"{gpu.state}: {gpu.error}" if gpu.error else gpu.state, 120))
    if links := down(gpu):
        found.append(f"NVLink {', '.join(map(str, links))} down")
    if gpu.fabric is not None and gpu.fabric != "completed":
        found.append(f"NVSwitch fabric {clean(gpu.fabric, 40)}")
    if gpu.ecc_now:
        found.append(f"{gpu.ecc_now} ECC")
    if gpu.remapped is not None and (gpu.remapped.failed or gpu.remapped.pending):
        found.append("row remap " + ("failed" if gpu.remapped.failed else "pending"))
    if (gpu.reasons or 0) & SLOWDOWN:
        found.append(reasons(gpu)[0])
    if grown := new_link_errors(gpu):
        found.append(f"{grown} new NVLink errors")
    return tuple(found)


def new_link_errors(gpu: Gpu) -> int:
    """Errors of its NVLinks since hangtop came."""
    return sum(n for name, n in gpu.new_errors.items() if name.startswith("link "))


def usual_clock(clocks: Iterable[int]) -> int | None:
    """The one in MHz that most GPUs have or exceed: of two the higher one, never one between."""
    known = tuple(clocks)
    return median_high(known) if known else None


def slow(gpu: Gpu, usual: int | None) -> bool:
    """Whether its clock is far below the usual one of its peers in MHz."""
    return None not in (usual, gpu.sm_mhz) and (gpu.sm_mhz or 0) < 0.8 * (usual or 0)


class Slot(Struct, frozen=True, gc=False):
    """A GPU, or a part of one, that a rank is on."""

    gpu: Gpu
    part: str | None
    """UUID of the MIG device."""
    how: Literal["process", "environment", "local-rank"]
    """It computes there; its CUDA_VISIBLE_DEVICES leaves only this; or its local rank, presumably.
    """


class Slots:
    """Says of every rank which GPUs it is on; looks through the processes of a node once."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._by_pid: dict[str, dict[int, list[tuple[Gpu, str | None]]]] = {}

    def of(self, rank: Rank) -> tuple[Slot, ...]:
        """The GPUs of a rank: where NVML sees its processes, else by its environment."""
        node = self._nodes.get(rank.node)
        if node is None or not node.gpus:
            return ()
        if node.name not in self._by_pid:
            self._by_pid[node.name] = _by_pid(node.gpus)
        seen = self._by_pid[node.name]
        pids = (rank.process.pid, *(child.pid for child in rank.children))
        found = [Slot(*place, "process") for pid in pids for place in seen.get(pid, ())]
        if found:
            return tuple({(one.gpu.index, one.part): one for one in found}.values())
        told = rank.process.env.get("CUDA_VISIBLE_DEVICES")
        if told is None and not uses_cuda(rank.process):
            return ()
        local = rank.local_rank
        if told == "0" and local:
            return ()  # Slurm and containers that hide the other GPUs number theirs from 0
        shown = visible(told, node.gpus)
        if told is not None and len(shown) == 1:
            return (Slot(*shown[0], "environment"),)
        if local is not None and local < len(shown):
            return (Slot(*shown[local], "local-rank"),)
        return ()


def _by_pid(gpus: Sequence[Gpu]) -> dict[int, list[tuple[Gpu, str | None]]]:
    """GPUs by the processes on them; of one in MIG mode the part counts and not the whole."""
    found: dict[int, list[tuple[Gpu, str | None]]] = defaultdict(list)
    for gpu in gpus:
        parts = {one.pid: part.uuid for part in gpu.mig_devices for one in part.processes or ()}
        for pid in {*parts, *(one.pid for one in gpu.processes or ())}:
            found[pid].append((gpu, parts.get(pid)))
    return found


def visible(told: str | None, gpus: Sequence[Gpu]) -> list[tuple[Gpu, str | None]]:
    """What a CUDA_VISIBLE_DEVICES leaves, in its order: GPU, and MIG device where it names one.

    As CUDA does: numbers or UUIDs, which may be cut short; what follows a wrong one does not
    count. Numbers count as NVML does only with CUDA_DEVICE_ORDER=PCI_BUS_ID or equal GPUs.
    """
    if told is None:
        return [(gpu, None) for gpu in gpus]
    found: list[tuple[Gpu, str | None]] = []
    for word in told.split(","):
        one = _named(word.strip(), gpus)
        if one is None:
            break
        found.append(one)
    return found


def _named(word: str, gpus: Sequence[Gpu]) -> tuple[Gpu, str | None] | None:
    if word.isdecimal() and len(word) < 5:
        return next(((gpu, None) for gpu in gpus if gpu.index == int(word)), None)
    if len(word) < 5 or not word.startswith(("GPU-", "MIG-")):
        return None
    named: list[tuple[Gpu, str | None]] = [
        (gpu, None) for gpu in gpus if (gpu.uuid or "").startswith(word)
    ]
    named += [
        (gpu, part.uuid)
        for gpu in gpus
        for part in gpu.mig_devices
        if (part.uuid or "").startswith(word)
    ]
    return named[0] if len(named) == 1 else None


def owners(job: Job | None, nodes: Iterable[Node]) -> Mapping[tuple[str, int], tuple[Rank, ...]]:
    """Ranks by node and GPU."""
    found: dict[tuple[str, int], list[Rank]] = defaultdict(list)
    slots = Slots(nodes)
    for rank in job.ranks if job is not None else ():
        if rank.process.gone_at is not None:
            continue
        for index in dict.fromkeys(slot.gpu.index for slot in slots.of(rank)):
            found[rank.node, index].append(rank)
    return {place: tuple(ranks) for place, ranks in found.items()}


def shared(slot: Slot, own: Container[int]) -> bool:
    """Whether NVML sees others than these processes on a GPU: what it does may be theirs.

    In a container NVML may tell other numbers than processes have there: then one is taken for its.
    """
    on = slot.gpu.processes or ()
    return len(on) > 1 if slot.how != "process" else any(one.pid not in own for one in on)


def name_gpu(gpu: Gpu) -> str:
    """`GPU 3 (0000:1b:00.0)`."""
    return clean(f"GPU {gpu.index} ({gpu.bus_id})" if gpu.bus_id else f"GPU {gpu.index}", 60)


def describe(gpu: Gpu) -> str:
    """`GPU 3 (0000:1b:00.0): 100 % busy at 118 of 700 W: it spins, ...`."""
    said = {
        "computes": "it computes",
        "spins": "it spins in a kernel that waits",
        "idle": "it is idle",
        "busy": "kernels run on it",
    }.get(doing(gpu), "")
    parts = []
    if gpu.state == "ok" and gpu.util is not None:
        parts.append(f"{gpu.util} % busy")
    if gpu.state == "ok" and gpu.power_w is not None:
        limit = f" of {gpu.power_limit_w}" if gpu.power_limit_w else ""
        parts.append(f"at {gpu.power_w}{limit} W")
    meters = " ".join(parts)
    told = "; ".join(filter(None, (f"{meters}: {said}" if said else meters, *troubles(gpu))))
    return f"{name_gpu(gpu)}: {told}" if told else name_gpu(gpu)
