"""State of a node's GPUs and ports, and the changes of their counters between readings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from hangtop_core.attach.wire import messages
from hangtop_core.attach.wire.fields import Fields
from hangtop_core.model.meters import grown
from hangtop_core.model.node.hardware import BUSY_MEMORY, BUSY_SHARE, UP, Gpu, Nic, Nvml, Xid
from hangtop_core.text.clean import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_DEVICES = 64
"""Maximum number of GPUs, and of ports, per node."""
MAX_NAME = 80
"""Maximum characters of a port's name."""
PCIE_CHANGE_KB, PCIE_SWING = 100_000, 0.1
"""KB/s, and share of the rate before, by which PCIe traffic changes when data move. The rate itself
proves nothing: waiting kernels of NCCL 2.28 over sockets read flags in host memory, on an H200 with
up to 3.7 GB/s, and steadily within a percent."""
SWING = 0.1
"""Share of the power limit by which power changes when a GPU begins or ends a phase of its work."""
UTIL_SWING = 10
"""Percent by which utilisation changes when kernels begin and end."""
LINK_RATE_KB = 1024.0
"""KiB/s over NVLink above which the traffic is data, and not the polling of a flag."""
PORT_RATE = 65536.0
"""Bytes/s of a port above which the traffic is more than background."""
PORTS_S = 5.0
"""Minimum seconds between two readings of ports (hangtop_probe.gpu.hardware)."""
_OWN = frozenset({"index", "worked_at", "power_peak_w", "new_errors"})
_OWN_PORT = frozenset({"name", "new_errors", "was_up", "moved_at"})
_GPU = Fields({f.name: f.type for f in msgspec.structs.fields(Gpu) if f.name not in _OWN})
_NIC = Fields({f.name: f.type for f in msgspec.structs.fields(Nic) if f.name not in _OWN_PORT})


class Devices:
    """GPUs and ports of one node."""

    def __init__(self) -> None:
        self.gpus: dict[int, Gpu] = {}
        self.nics: dict[str, Nic] = {}
        self._first_gpu: dict[int, dict[str, int]] = {}
        self._first_nic: dict[str, Mapping[str, int]] = {}
        self._at: float | None = None
        """Time of the node's previous reading, from which traffic of a port is counted."""

    def fold(
        self,
        piece: messages.WatchPiece,
        at: float,
        skew: float,
        complain: Callable[[str], None],
    ) -> dict[str, Any]:
        """Fold one piece, read ``at``; return the fields of `model.Node` that changed."""
        changed: dict[str, Any] = {}
        if piece.nvml is not None:
            try:
                changed["nvml"] = messages.decode(piece.nvml, Nvml)
            except messages.BadPieceError as error:
                complain(f"nvml: {error}")
        self._fold_gpus(piece.gpus, at, skew, complain)
        self._fold_nics(piece.nics, at, complain)
        if piece.gpus:
            changed["gpus"] = tuple(self.gpus[index] for index in sorted(self.gpus))
        if piece.nics:
            changed["nics"] = tuple(self.nics[name] for name in sorted(self.nics))
        self._at = at
        return changed

    def _fold_gpus(
        self,
        gpus: Mapping[str, object],
        at: float,
        skew: float,
        complain: Callable[[str], None],
    ) -> None:
        for key, raw in gpus.items():
            index = int(key) if key.isdecimal() and len(key) < 5 else None
            if index is None or (index not in self.gpus and len(self.gpus) >= MAX_DEVICES):
                complain("gpus: not a GPU, or too many")
                continue
            fields = _read(raw, _GPU, f"GPU {index}", complain)
            self.gpus[index] = self._gpu(index, fields, at, skew)

    def _fold_nics(
        self, nics: Mapping[str, object], at: float, complain: Callable[[str], None]
    ) -> None:
        for key, raw in nics.items():
            name = clean(key, MAX_NAME)
            if name not in self.nics and len(self.nics) >= MAX_DEVICES:
                complain("nics: too many")
                continue
            fields = _read(raw, _NIC, f"port {name}", complain)
            self.nics[name] = self._nic(name, fields, at)

    def _gpu(self, index: int, fields: dict[str, Any], at: float, skew: float) -> Gpu:
        old = self.gpus.get(index)
        if "at" in fields:
            fields["at"] -= skew
        if "xids" in fields:
            fields["xids"] = tuple(Xid(xid.number, xid.at - skew) for xid in fields["xids"])
        new = Gpu(index, **fields) if old is None else msgspec.structs.replace(old, **fields)
        errors = _errors(new)
        first = self._first_gpu.setdefault(index, errors)
        peak = max(new.power_w or 0, (old.power_peak_w or 0) if old is not None else 0)
        worked = _worked(old, new) if old is not None and new.state == "ok" else False
        return msgspec.structs.replace(
            new,
            power_peak_w=peak or None,
            worked_at=at if worked else new.worked_at,
            new_errors=_grown(first, errors),
        )

    def _nic(self, name: str, fields: dict[str, Any], at: float) -> Nic:
        old = self.nics.get(name)
        new = Nic(name, **fields) if old is None else msgspec.structs.replace(old, **fields)
        first = self._first_nic.setdefault(name, new.errors)
        span = PORTS_S if self._at is None else max(at - self._at, PORTS_S)
        came = 0 if old is None else grown(old.sent, new.sent) + grown(old.received, new.received)
        return msgspec.structs.replace(
            new,
            new_errors=_grown(first, new.errors),
            was_up=new.was_up or new.state in UP,
            moved_at=at if came > PORT_RATE * span else new.moved_at,
        )


def _read(raw: object, spec: Fields, what: str, complain: Callable[[str], None]) -> dict[str, Any]:
    wrong: list[str] = []
    if not isinstance(raw, dict):
        complain(f"{what}: is not an object")
        return {}
    fields = spec.read(raw, wrong)
    for text in wrong:
        complain(f"{what}: {text}")
    return fields


def _worked(old: Gpu, new: Gpu) -> bool:
    """Return whether a GPU did more than wait between two readings.

    A communication kernel that waits for a peer polls a flag: it keeps the GPU 100 % busy, draws
    far less power than training, steadily, and moves no data.
    """
    span = new.at - old.at
    if _draws_working_power(old, new, span):
        return True
    if new.util is not None and old.util is not None and abs(new.util - old.util) >= UTIL_SWING:
        return True
    if (new.memory_util or 0) >= BUSY_MEMORY or _pcie_traffic_changed(old, new):
        return True
    # Links are read less often than other values, at most every ten seconds or so.
    return span > 0 and grown(old.nvlink_kb, new.nvlink_kb) > LINK_RATE_KB * max(span, 10.0)


def _draws_working_power(old: Gpu, new: Gpu, span: float) -> bool:
    """Return whether a GPU drew much of its power limit, or its power changed."""
    limit, power = new.power_limit_w, new.power_w
    if not limit or power is None:
        return False
    mean = grown(old.energy_j, new.energy_j) / span if span > 0 else 0
    if max(power, mean) > BUSY_SHARE * limit:
        return True
    return old.power_w is not None and abs(power - old.power_w) >= SWING * limit


def _pcie_traffic_changed(old: Gpu, new: Gpu) -> bool:
    rate, before = _over_pcie(new), _over_pcie(old)
    if rate is None or before is None:
        return False
    return abs(rate - before) >= max(PCIE_CHANGE_KB, PCIE_SWING * max(rate, before))


def _over_pcie(gpu: Gpu) -> int | None:
    """Return KB/s over PCIe in both directions."""
    both = (gpu.pcie_tx_kb, gpu.pcie_rx_kb)
    return None if None in both else sum(rate or 0 for rate in both)


def _errors(gpu: Gpu) -> dict[str, int]:
    """Return the counters of a GPU that only grow on errors."""
    link_errors = {
        f"link {link.number} {k}": n for link in gpu.links for k, n in link.errors.items()
    }
    rows = gpu.remapped.uncorrected if gpu.remapped is not None else None
    counts = {"ecc": gpu.ecc_now, "remapped rows": rows, "pcie replays": gpu.pcie_replays}
    return link_errors | {name: value for name, value in counts.items() if value is not None}


def _grown(first: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    return {k: n - first.get(k, 0) for k, n in now.items() if n > first.get(k, 0)}
