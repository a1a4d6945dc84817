"""What would tell more of a cause that lines of logs tell; or why nothing would."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.verdict.needs import ALIKE, DRIVER, ISSUED, MORE_OR_LESS, More

if TYPE_CHECKING:
    from collections.abc import Mapping

NEEDS: Mapping[str, tuple[More, ...]] = {
    "store-port-taken": (More("descriptors", "which process has the port"),),
    "store-unreachable": (More("descriptors", "to which address it tries to connect"),),
    "gpu-xid": DRIVER,
    "gpu-ecc": DRIVER,
    "gpu-nvlink": DRIVER,
    "missing-collective": ISSUED,
    "all-joined-transport": (
        More("recorder", "whether all have issued the same, with the same sizes"),
        More("kernel log", "whether a driver reports an error of a GPU"),
    ),
    "mismatched-collective": MORE_OR_LESS,
    "mismatched-size": ALIKE,
    "gil-held": (More("native stacks", "which C function keeps the GIL"),),
    "io-wait": (
        More("descriptors", "which file it is, and on which server"),
        More("kernel log", "which process the kernel says is blocked"),
    ),
    "disk-full": (More("descriptors", "whether a file that it writes is on a disk that is full"),),
    "dataloader-worker-dead": (More("kernel log", "whether the kernel ended the worker"),),
    "port-blocked": (More("descriptors", "to which address it tries to connect"),),
}
"""By cause."""
COMPLETE: Mapping[str, str] = {
    "nccl-ib-error": "the line names the peer; counters of ports are read with every pass",
    "ib-port-down": "the line names the device; states of ports are read with every pass",
    "wrong-interface": "NCCL's own line names the interface that it has chosen",
    "shm-too-small": "the line is of the very call that failed for want of it",
    "pin-memory-stuck": "the thread has ended, and left nothing but this line",
    "launch-misconfigured": "NCCL's own line says which of what ranks were told cannot be true",
    "nccl-init-incomplete": "only logs say who has begun to join a communicator, and who has not",
}
"""The same of those of which nothing would."""
