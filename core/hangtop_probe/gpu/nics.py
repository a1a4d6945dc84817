"""Network ports of this node: InfiniBand and RoCE ports, and Ethernet interfaces, from sysfs.

Sources: /sys/class/infiniband/DEVICE/ports/PORT (Documentation/ABI/stable/sysfs-class-infiniband of
Linux; `hw_counters` are the driver's own, here those of mlx5) and /sys/class/net/NAME
(Documentation/ABI/testing/sysfs-class-net and -statistics). Pause frames are not there: those of
RoCE ports are asked of the driver (`ethtool`).
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from ..proc import procfs
from . import ethtool

if TYPE_CHECKING:
    Fields = Dict[str, Any]

SYS = "/sys"
MAX_PORTS = 64
_DATA = 4
"""port_xmit_data and port_rcv_data count words of four bytes."""
_ERRORS = procfs.words(
    """
    symbol_error link_error_recovery link_downed port_rcv_errors port_rcv_remote_physical_errors
    port_xmit_discards local_link_integrity_errors excessive_buffer_overrun_errors
    """
)
_DRIVER_ERRORS = procfs.words(
    """
    out_of_sequence packet_seq_err local_ack_timeout_err rnr_nak_retry_err implied_nak_seq_err
    req_cqe_error resp_cqe_error req_transport_retries_exceeded rx_icrc_encapsulated
    roce_slow_restart roce_adp_retrans_to np_ecn_marked_roce_packets rp_cnp_handled
    """
)
_ETHERNET_ERRORS = procfs.words(
    """
    rx_errors tx_errors rx_dropped tx_dropped rx_crc_errors rx_missed_errors rx_fifo_errors
    tx_carrier_errors
    """
)


def read(root: str = SYS) -> Dict[str, Fields]:
    """Return all ports by name: `mlx5_0/1` is port 1 of an RDMA device, `eth0` an interface."""
    found: Dict[str, Fields] = {}
    taken: Dict[str, str] = {}
    base = os.path.join(root, "class/infiniband")
    for device in _names(base):
        where = os.path.join(base, device)
        interfaces = _names(os.path.join(where, "device/net"))
        taken.update((name, device) for name in interfaces)
        for port in _names(os.path.join(where, "ports")):
            fields = _port(os.path.join(where, "ports", port))
            fields.update(numa=numa(os.path.join(where, "device")), interfaces=interfaces)
            if fields["kind"] == "roce":
                fields["errors"].update(_pauses(interfaces))
            found["%s/%s" % (device, port)] = fields
    base = os.path.join(root, "class/net")
    for name in _names(base):
        where = os.path.join(base, name)
        if os.path.exists(os.path.join(where, "device")) or _is_bond(where):
            fields = _interface(where)
            if name in taken:
                fields["rdma"] = taken[name]
            found[name] = fields
    return dict(sorted(found.items())[:MAX_PORTS])


def _port(where: str) -> Fields:
    counters = os.path.join(where, "counters")
    sent = _number(os.path.join(counters, "port_xmit_data"))
    got = _number(os.path.join(counters, "port_rcv_data"))
    errors = _counters(counters, _ERRORS)
    errors.update(_counters(os.path.join(where, "hw_counters"), _DRIVER_ERRORS))
    return {
        "kind": "roce" if _text(os.path.join(where, "link_layer")) == "Ethernet" else "infiniband",
        "state": _after_colon(_text(os.path.join(where, "state"))),
        "physical": _after_colon(_text(os.path.join(where, "phys_state"))),
        "rate": _text(os.path.join(where, "rate")),
        "sent": None if sent is None else sent * _DATA,
        "received": None if got is None else got * _DATA,
        "errors": errors,
    }


def _pauses(interfaces: List[str]) -> Dict[str, int]:
    sums: Dict[str, int] = {}
    for name in interfaces:
        with suppress(OSError):  # in a namespace of its own, or the driver does not tell
            for what, count in ethtool.pauses(name).items():
                sums[what] = sums.get(what, 0) + count
    return sums


def _interface(where: str) -> Fields:
    statistics = os.path.join(where, "statistics")
    errors = _counters(statistics, _ETHERNET_ERRORS)
    losses = _number(os.path.join(where, "carrier_down_count"))
    if losses is not None:
        errors["carrier_down"] = losses
    speed = _number(os.path.join(where, "speed"))
    return {
        "kind": "ethernet",
        "state": _text(os.path.join(where, "operstate")),
        "physical": None,
        "rate": "%d Mb/s" % speed if speed is not None and speed > 0 else None,
        "sent": _number(os.path.join(statistics, "tx_bytes")),
        "received": _number(os.path.join(statistics, "rx_bytes")),
        "errors": errors,
        "numa": numa(os.path.join(where, "device")),
        "interfaces": [],
    }


def _is_bond(where: str) -> bool:
    return os.path.isdir(os.path.join(where, "bonding"))


def _names(path: str) -> List[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def _text(path: str) -> Optional[str]:
    data = procfs.read(path, 4096)
    return procfs.text(data.strip())[:80] if data else None


def _number(path: str) -> Optional[int]:
    value = _text(path)
    return procfs.number(value.encode()) if value else None


def _counters(folder: str, names: Any) -> Dict[str, int]:
    found = ((name, _number(os.path.join(folder, name))) for name in names)
    return {name: value for name, value in found if value is not None}


def numa(device: str) -> Optional[int]:
    """Return the NUMA node of a device, by its folder in sysfs; -1 there means none."""
    found = _number(os.path.join(device, "numa_node"))
    return found if found is not None and found >= 0 else None


def _after_colon(value: Optional[str]) -> Optional[str]:
    """`4: ACTIVE` is how ports write their state."""
    return value.partition(":")[2].strip() or value if value else None
