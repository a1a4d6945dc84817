"""The nouns of hangtop: frozen structs that all packages share.

Programs import the public names from here, as docs/api.md says: `from hangtop_core.model import
Node`. The modules of this package hold the definitions; `snapshot` has nodes, ranks and jobs. A
module is loaded when one of its names is first used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hangtop_core.model.activity_window import Lately
    from hangtop_core.model.descriptors import Descriptor, Mount
    from hangtop_core.model.node.cgroups import Cgroup
    from hangtop_core.model.node.facts import FullQuota, KernelLine
    from hangtop_core.model.node.hardware import Gpu, Nic, Nvml
    from hangtop_core.model.numerics import Numerics
    from hangtop_core.model.output import Output
    from hangtop_core.model.rankstates import RankState
    from hangtop_core.model.recorder.ras import Ras
    from hangtop_core.model.recurring import Wait
    from hangtop_core.model.snapshot import (
        CONTROL,
        ENDED,
        DescriptorTable,
        Fact,
        Failure,
        Frame,
        Job,
        Left,
        Local,
        Node,
        NodeState,
        Process,
        Rank,
        Recorder,
        RecorderWay,
        Role,
        Snapshot,
        StackSample,
        Thread,
        ThreadStack,
        pids_of,
    )
    from hangtop_core.text.clean import Text

__all__ = [
    "CONTROL",
    "ENDED",
    "Cgroup",
    "Descriptor",
    "DescriptorTable",
    "Fact",
    "Failure",
    "Frame",
    "FullQuota",
    "Gpu",
    "Job",
    "KernelLine",
    "Lately",
    "Left",
    "Local",
    "Mount",
    "Nic",
    "Node",
    "NodeState",
    "Numerics",
    "Nvml",
    "Output",
    "Process",
    "Rank",
    "RankState",
    "Ras",
    "Recorder",
    "RecorderWay",
    "Role",
    "Snapshot",
    "StackSample",
    "Text",
    "Thread",
    "ThreadStack",
    "Wait",
    "pids_of",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hangtop_core.model import snapshot

    return getattr(snapshot, name)
