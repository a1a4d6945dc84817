"""Ranks that only wait for their GPU, in whatever line of Python that is.

CUDA works off what it is given one after the other, and takes some thousand kernels ahead. Behind a
collective that does not end, a rank goes on until it needs a result, or until no more is taken:
then it stands in any line that starts a kernel, and runs all the time, since CUDA polls. Seen with
torch 2.11 and NCCL 2.28: in `torch.linalg.vector_norm`, with cuLaunchKernel and sched_yield below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from hangtop_core.analysis.activity import uses_cuda
from hangtop_core.analysis.gpus import Slots, doing, shared
from hangtop_core.analysis.native import WAITS_FOR_GPU
from hangtop_core.diagnosis import STALLED_AFTER_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.analysis.activity import Activity
    from hangtop_core.analysis.gpus import Slot
    from hangtop_core.model.snapshot import Job, Rank, Snapshot

SAMPLES = 3
"""Samples at least in which a rank has to be in the same lines."""


def with_gpus(snapshot: Snapshot, job: Job, read: Sequence[Activity]) -> Sequence[Activity]:
    """What ranks do: who runs in one line, on a GPU of its own that is busy, waits for it.

    What its GPU does tells whether it gets on, as of one that is known to wait for it.
    """
    if not any(node.gpus for node in snapshot.nodes):
        return read
    both = zip(job.ranks, read, strict=True)
    stay = [i for i, (rank, one) in enumerate(both) if one.kind == "busy" and _stays(rank, one)]
    if not stay:
        return read
    slots, told = Slots(snapshot.nodes), list(read)
    for i in stay:
        some = slots.of(job.ranks[i])
        if some and all(_works_for(job.ranks[i], slot) for slot in some):
            told[i] = replace(read[i], kind="work-wait", text=WAITS_FOR_GPU)
    return told


def _works_for(rank: Rank, slot: Slot) -> bool:
    """Whether a GPU has something to do all the time, and that is the rank's."""
    own = {rank.process.pid, *(child.pid for child in rank.children)}
    return doing(slot.gpu) in ("spins", "computes") and not shared(slot, own)


def _stays(rank: Rank, activity: Activity) -> bool:
    """Whether a rank that uses CUDA runs, and was in the same lines in all samples of late."""
    sample = rank.sample
    if sample is None or sample.same_since is None or not activity.running:
        return False
    long = sample.count >= SAMPLES and sample.at - sample.same_since >= STALLED_AFTER_S
    return long and uses_cuda(rank.process)
