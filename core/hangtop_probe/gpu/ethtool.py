"""Counters of a network driver that are not in sysfs, as `ethtool -S` shows them: pause frames.

By the ioctl SIOCETHTOOL (include/uapi/linux/ethtool.h), which only reads, and which anybody may
make. Pause frames stop a sender: of priority flow control (802.1Qbb), on which RoCE stands, and of
the whole link (802.3x). Some come with any load; a storm of them stops a fabric without any error.

Names differ by driver: mlx5 `rx_prio3_pause`, `tx_global_pause`, `tx_pause_storm_error_events`,
bnxt_en `rx_pfc_ena_frames_pri3`, ice and irdma `rx_priority_3_xoff.nic`.
"""

from __future__ import annotations

import array
import fcntl
import re
import socket
import struct
from typing import Dict, List

_SIOCETHTOOL = 0x8946
_SSET_INFO, _STRINGS, _STATS = 0x37, 0x1B, 0x1D
_OF_STATS = 1
"""ETH_SS_STATS: which of a driver's lists of names."""
_NAME = 32
MAX_COUNTERS = 16_384  # drivers have hundreds to some thousands, by their queues
SPARE = 4096
"""More counters that there is room for: the kernel writes as many as the driver has by then
(net/ethtool/ioctl.c, ethtool_get_stats), whatever room it is told of."""
_PAUSE = re.compile(r"(?i)^(rx|tx)_(?=.*(?:pause|pfc|xoff))(?!.*(?:duration|transition|xon|storm))")
_STORM = re.compile(r"(?i)pause_storm|pfc_storm")


def pauses(interface: str) -> Dict[str, int]:
    """Return how many pause frames an interface got and sent, over all priorities.

    `pause_received` have stopped this node, with `pause_sent` it has stopped others; `pause_storms`
    is how often the driver itself found that there were too many of them. Empty
    where its driver counts none.

    Raises:
        OSError: the interface is gone, or its driver has no such counters.
    """
    return pauses_of(counters(interface))


def pauses_of(found: Dict[str, int]) -> Dict[str, int]:
    """Sum up those of all priorities. A driver may count some twice: it tells that they grow."""
    sums: Dict[str, int] = {}
    for name, count in found.items():
        if _STORM.search(name):
            sums["pause_storms"] = sums.get("pause_storms", 0) + count
        match = _PAUSE.match(name)
        if match is not None:
            key = "pause_received" if match[1].lower() == "rx" else "pause_sent"
            sums[key] = sums.get(key, 0) + count
    return sums


def counters(interface: str) -> Dict[str, int]:
    """Return all counters of a driver, by its own names; raises `OSError`."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        # struct ethtool_sset_info: command, -, mask of lists (in: wanted, out: there), lengths
        info = array.array("B", struct.pack("=IIQI", _SSET_INFO, 0, 1 << _OF_STATS, 0))
        _ask(handle, interface, info)
        mask, count = struct.unpack_from("=QI", info, 8)
        if not mask or not 0 < count <= MAX_COUNTERS:
            return {}
        # struct ethtool_gstrings: command, list, how many, names
        strings = array.array("B", struct.pack("=III", _STRINGS, _OF_STATS, count))
        strings.frombytes(bytes(_NAME * (count + SPARE)))
        _ask(handle, interface, strings)
        # struct ethtool_stats: command, how many, values
        stats = array.array("B", struct.pack("=II", _STATS, count))
        stats.frombytes(bytes(8 * (count + SPARE)))
        _ask(handle, interface, stats)
    names = _names(strings.tobytes()[12:])
    return dict(zip(names, struct.unpack_from("=%dQ" % count, stats, 8)))


def _ask(handle: socket.socket, interface: str, data: array.array[int]) -> None:
    # struct ifreq: the name, and a pointer to what the command says and gets
    fcntl.ioctl(
        handle,
        _SIOCETHTOOL,
        struct.pack("16sP16x", interface.encode()[:15], data.buffer_info()[0]),
    )


def _names(data: bytes) -> List[str]:
    parts = (data[at : at + _NAME] for at in range(0, len(data), _NAME))
    return [part.partition(b"\0")[0].decode("ascii", "replace") for part in parts]
