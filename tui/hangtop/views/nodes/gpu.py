"""One GPU in full, and the network ports of its node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop.keys.items import Item, numbered
from hangtop.terminal.columns import Column
from hangtop.terminal.spans import Line, labelled, line
from hangtop.views.common import ago, clock
from hangtop.views.nodes.gpus import DOES_ROLES
from hangtop_core.analysis.gpus import doing, down, reasons
from hangtop_core.analysis.xids import events
from hangtop_core.model.node.hardware import UP, Nic
from hangtop_core.text.clean import clean, plural, size
from hangtop_core.text.rank_sets import fold

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hangtop.views.nodes.gpus import GpuRow
    from hangtop_core.model.node.hardware import Gpu, GpuProcess

LABEL = 9
XIDS_SHOWN = 8
SAID = {
    "computes": "kernels run, and draw the power of work",
    "spins": "busy all the time at little power: a kernel only waits, as NCCL's do for a peer",
    "busy": "kernels run; without its power it cannot be told whether they only wait",
    "idle": "no kernel runs: its rank gives it nothing to do",
    "MIG": "split into the MIG devices below; NVML tells no utilisation of it",
    "unknown": "its utilisation cannot be read",
}


def gpu_items(row: GpuRow, now: float) -> list[Item]:
    """Return all facts about the GPU of a row; for a folded row the driver and a line per GPU."""
    return numbered(
        Item(label, (labelled(label, value, LABEL),), LABEL + 1)
        for label, value in _lines(row, now)
    )


def _lines(row: GpuRow, now: float) -> Iterator[tuple[str, Line | str]]:
    nvml = row.node.nvml
    if row.folded:
        if row.trouble:
            yield "wrong", line((row.trouble, "bad"))
        for gpu in row.gpus:
            yield f"GPU {gpu.index}", _brief(gpu)
    else:
        yield from _whole(row, row.gpus[0], now)
    if nvml is not None:
        cuda = f", CUDA {nvml.cuda}" if nvml.cuda else ""
        versions = f"{nvml.driver}{cuda}" if nvml.driver else "unknown"
        yield "driver", line(versions, ("  " + nvml.error, "bad") if nvml.error else "")


def _brief(gpu: Gpu) -> Line:
    does = doing(gpu)
    word = gpu.state if does == "broken" else does
    if does == "broken":
        return line((word, "bad"))  # the first line gives the reason
    util = "-" if gpu.util is None else f"{gpu.util}%"
    power = "-" if gpu.power_w is None else f"{gpu.power_w} W"
    return line((word, DOES_ROLES[does]), f"  {util}  {power}")


def _whole(row: GpuRow, gpu: Gpu, now: float) -> Iterator[tuple[str, Line | str]]:
    yield from _work(row, gpu, now)
    if row.ranks:
        yield "rank", fold(row.ranks)
    yield "is", "  ".join(part for part in (gpu.name, gpu.bus_id) if part) or "unknown"
    if gpu.uuid or gpu.serial:
        yield "", line((f"{gpu.uuid or ''}  serial {gpu.serial or '?'}", "dim"))
    if gpu.state == "ok":
        yield from _meters(gpu)
        yield from _links(gpu)
        yield from _memory_errors(gpu)
    for event in events(row.node).get(gpu.index, ())[-XIDS_SHOWN:]:
        yield "xid", line((f"{clock(event.at)} {event.text}", "bad"))
    yield from _users(gpu)
    for name, reason in sorted(gpu.missing.items()):
        yield "not read", line((f"{name}: {reason}", "dim"))


def _work(row: GpuRow, gpu: Gpu, now: float) -> Iterator[tuple[str, Line | str]]:
    """Yield what the GPU does, what is wrong with it, and when it last worked."""
    does = doing(gpu)
    word = gpu.state if does == "broken" else does
    why = gpu.error or "" if does == "broken" else SAID[does]
    yield "does", line((word, DOES_ROLES[does]), (f"  {why}", "dim"))
    if row.trouble not in ("", f"{word}: {why}"):
        yield "wrong", line((row.trouble, "bad"))
    if gpu.worked_at is not None:
        when = ago(gpu.worked_at, now)
        yield "worked", f"{'does' if when == 'now' else 'last seen to do'} more than wait {when}"


def _users(gpu: Gpu) -> Iterator[tuple[str, str]]:
    """Yield the processes on the GPU, and its MIG devices with theirs."""
    for process in gpu.processes or ():
        yield "process", _process(process)
    for part in gpu.mig_devices:
        pids = ", ".join(f"pid {process.pid}" for process in part.processes or ()) or "no process"
        yield "MIG", f"{part.slot}  {part.uuid or ''}  {size(part.memory_used)}  {pids}"


def _meters(gpu: Gpu) -> Iterator[tuple[str, Line | str]]:
    limit = f" of {gpu.power_limit_w} W" if gpu.power_limit_w else " W"
    peak = f", at most {gpu.power_peak_w} W since hangtop came" if gpu.power_peak_w else ""
    if gpu.power_w is not None:
        energy = f"  {_joules(gpu.energy_j)} in all" if gpu.energy_j is not None else ""
        yield "power", line(f"{gpu.power_w}{limit}{peak}", (energy, "dim"))
    if gpu.sm_mhz is not None:
        limits = ", ".join(reasons(gpu)) or "nothing holds it back"
        top = f" of {gpu.sm_max_mhz}" if gpu.sm_max_mhz else ""
        memory = f"  memory {gpu.memory_mhz} MHz" if gpu.memory_mhz is not None else ""
        yield "clock", line(f"{gpu.sm_mhz}{top} MHz: {limits}", (memory, "dim"))
    if gpu.memory_used is not None:
        busy = f"  busy {gpu.memory_util}%" if gpu.memory_util is not None else ""
        yield "memory", line(f"{size(gpu.memory_used)} of {size(gpu.memory_total)}", (busy, "dim"))
    if gpu.pcie_gen is not None:
        link = (
            f"gen {gpu.pcie_gen} of {gpu.pcie_max_gen}, x{gpu.pcie_width} of {gpu.pcie_max_width}"
        )
        flows = ((gpu.pcie_tx_kb, "out"), (gpu.pcie_rx_kb, "in"))
        flow = ", ".join(
            f"{size(kb * 1024)}/s {direction}" for kb, direction in flows if kb is not None
        )
        again = "" if gpu.pcie_replays is None else plural(gpu.pcie_replays, "replay")
        yield "PCIe", "  ".join(filter(None, (link, flow, again)))


def _joules(count: int) -> str:
    return f"{count / 1e6:.1f} MJ" if count >= 1_000_000 else f"{count / 1e3:.1f} kJ"


def _links(gpu: Gpu) -> Iterator[tuple[str, Line | str]]:
    if gpu.links:
        up = sum(link.up is True for link in gpu.links)
        version = next((f"version {link.version}" for link in gpu.links if link.version), "")
        lost = down(gpu)
        bad = f"  down: {', '.join(map(str, lost))}" if lost else ""
        flow = f"  {size(gpu.nvlink_kb * 1024)} in all" if gpu.nvlink_kb is not None else ""
        yield "NVLink", line(f"{up} of {len(gpu.links)} up  {version}", (flow, "dim"), (bad, "bad"))
    for link in gpu.links:
        if link.errors:
            counts = ", ".join(f"{count} {name}" for name, count in sorted(link.errors.items()))
            text = f"link {link.number}: {clean(counts, 200)} since the driver came"
            yield "", line((text, "warn"))
    if gpu.fabric is not None:
        yield "fabric", line((gpu.fabric, "" if gpu.fabric == "completed" else "bad"))


def _memory_errors(gpu: Gpu) -> Iterator[tuple[str, Line | str]]:
    if gpu.ecc_now is not None:
        role = "bad" if gpu.ecc_now else ""
        ever = "" if gpu.ecc_ever is None else f", {gpu.ecc_ever} ever"
        uncorrected = f"{gpu.ecc_now} not corrected since the driver came{ever}"
        corrected = f", {gpu.ecc_corrected} corrected" if gpu.ecc_corrected is not None else ""
        yield "ECC", line((uncorrected, role), (corrected, "dim"))
    rows = gpu.remapped
    if rows is not None and (rows.uncorrected or rows.pending or rows.failed):
        more = ", more wait for a reset" if rows.pending else ""
        more += ", no spare one was left" if rows.failed else ""
        yield "rows", line((f"{rows.uncorrected} replaced for errors{more}", "warn"))


def _process(process: GpuProcess) -> str:
    return f"{process.pid}  {process.comm or 'not seen from here'}  {size(process.memory)}"


def _errors(nic: Nic) -> Line:
    if nic.new_errors:
        counters = ", ".join(f"+{count} {name}" for name, count in sorted(nic.new_errors.items()))
        return line((clean(counters, 120), "bad"))
    total = sum(nic.errors.values())
    return line((f"{total} before" if total else "none", "dim"))


def _port_state(nic: Nic) -> Line:
    role = "good" if nic.state in UP else "bad" if nic.was_up else "warn"
    return line((nic.state or "-", role))


PORT_COLUMNS: tuple[Column[Nic], ...] = (
    Column("port", "PORT", lambda nic: line((nic.name, "bold")), lambda nic: nic.name, minimum=4),
    Column("state", "STATE", _port_state, lambda nic: nic.state or "", maximum=8),
    Column("kind", "KIND", lambda nic: line(nic.kind), lambda nic: nic.kind, maximum=10, drop=3),
    Column(
        "rate", "RATE", lambda nic: line((nic.rate or "-", "dim")), lambda nic: nic.rate or "",
        maximum=22, drop=2,
    ),
    Column(
        "sent", "SENT", lambda nic: line(size(nic.sent)), lambda nic: nic.sent or 0,
        align="right", maximum=9, drop=4,
    ),
    Column(
        "received", "RECEIVED", lambda nic: line(size(nic.received)),
        lambda nic: nic.received or 0, align="right", maximum=9, drop=5,
    ),
    Column(
        "errors", "ERRORS", _errors, lambda nic: sum(nic.new_errors.values()),
        minimum=8, maximum=60, flex=True, drop=1,
    ),
)  # fmt: skip
