"""Causes in how CUDA is called: what the frames show is not always what hangs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hangtop_core.analysis.native import WAITS_FOR_GPU
from hangtop_core.analysis.verdict.base import Hit, Rule, Subject, alike
from hangtop_core.analysis.verdict.callers import stack_key
from hangtop_core.analysis.verdict.evidence import common_facts, fact
from hangtop_core.analysis.verdict.naming import name_ranks
from hangtop_core.analysis.verdict.needs import ALIKE, More
from hangtop_core.analysis.verdict.sentences import is_are, sentence, since, who
from hangtop_core.analysis.verdict.steps import on, trace_steps
from hangtop_core.text.commands import Advice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.reading import Reading
    from hangtop_core.analysis.verdict.case import Case

_ALLOCATES = re.compile(
    r"^(cudaMalloc|cudaFree|cudaHostAlloc|cudaMallocHost|cuMemAlloc|cuMemFree|cuMemHostAlloc"
    r"|cuModuleLoad|cuLibraryLoad|cuMemCreate|cuMemUnmap)"
)
"""Calls of CUDA that wait for all that runs on the GPU, or may: its documentation on implicit
synchronisation. Seen with native stacks only."""
_EMPTIES = frozenset({"empty_cache", "ipc_collect", "reset_peak_memory_stats"})
_HANGS_BLOCKING = re.compile(r"^2\.(14|15|16)(\.|$)")
"""NCCL in which CUDA_LAUNCH_BLOCKING is known to hang: 2.14.3, with torch 1.13; 2.17 does not."""


def _allocating(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    if not case.waiters:
        return
    anybody = (*left, *case.waiters)
    stacks = {stack_key(subject) for subject in anybody}
    calls = {one: call for one in stacks if (call := _allocation(case.reader.reading(one)))}
    inside = [s for s in anybody if stack_key(s) in calls] if calls else []
    # Where most that wait do so there, it is what they wait for another rank in.
    if len([s for s in inside if s.waits]) * 2 > len(case.waiters):
        inside = [s for s in inside if not s.waits]
    for group in alike(inside, lambda s: (calls[stack_key(s)], s.activity.at)):
        first = group[0]
        yield Hit(
            subjects=group,
            summary=sentence(
                case,
                f"{who(group)} {is_are(group, 'is', 'are')} in {calls[stack_key(first)]} at "
                f"{first.activity.at}",
                f"{since(case, group)}: that waits for everything that runs on "
                f"{is_are(group, 'its GPU', 'their GPUs')}, also for a collective that needs "
                f"{is_are(group, 'this rank', 'these ranks')} to go on".lstrip(": "),
                blamed=group,
            ),
            evidence=common_facts(case, group),
            steps=(
                Advice("CUDA_MODULE_LOADING=EAGER, and a warm-up step before the first collective"),
                Advice(
                    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; no empty_cache() in steps"
                ),
                *trace_steps(first),
            ),
        )


def _allocation(reading: Reading) -> str | None:
    """The call that allocates, where a stack is in one."""
    top = reading.top
    if top is not None and top.name in _EMPTIES and top.file.endswith("/torch/cuda/memory.py"):
        return top.name
    return next((one.name for one in reading.natives if _ALLOCATES.match(one.name)), None)


def _blocking(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    if case.suspects:
        return
    hung = [s for s in case.waiters if s.rank.process.env.get("CUDA_LAUNCH_BLOCKING") == "1"]
    known = [s for s in hung if _HANGS_BLOCKING.match(s.rank.process.versions.get("nccl", ""))]
    if not known or len(known) != len(case.waiters):
        return
    version = known[0].rank.process.versions["nccl"]
    yield Hit(
        subjects=tuple(known),
        summary=(
            f"{name_ranks(known)} wait alike with CUDA_LAUNCH_BLOCKING=1 and NCCL {version}: that "
            f"is known to hang"
        ),
        evidence=(
            fact("environment", None, f"CUDA_LAUNCH_BLOCKING=1 in {name_ranks(known)}"),
            fact("environment", None, f"NCCL {version} is loaded"),
            *common_facts(case, known[:1]),
        ),
        steps=(
            Advice("start the job without CUDA_LAUNCH_BLOCKING"),
            Advice("or with NCCL 2.17 or newer"),
        ),
    )


def _syncing(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    """All wait for their GPUs, and no recorder tells for what."""
    if case.suspects or case.picture is not None or case.progress.state != "hung":
        return
    waiting = [s for s in case.waiters if s.activity.text == WAITS_FOR_GPU]
    if not waiting or len(waiting) * 2 < len(case.waiters):
        return
    first = waiting[0]
    yield Hit(
        subjects=(),
        explained=case.waiters,
        summary=(
            f"{name_ranks(waiting)} wait for their GPUs at {first.activity.at} "
            f"{case.lasting(case.progress.since)}. That line is not what hangs: something that was "
            f"put on the GPU before it does not end, most likely a collective that some rank has "
            f"not joined, and stacks cannot tell which"
        ),
        evidence=common_facts(case, waiting[:1]),
        steps=(
            on(first, "hangtop", "flight", "--pid", first.pid),
            Advice("`hangtop run -- COMMAND` starts the job so that its recorder can be read"),
            Advice("`hangtop diagnose --ras` asks NCCL itself, where its version is safe"),
        ),
    )


ALLOC = Rule(
    cause="cuda-alloc-behind-collective",
    title="A rank allocates GPU memory behind a collective that needs it",
    seen="The innermost frames of a rank are cudaMalloc, cudaFree, cudaHostAlloc or the loading of "
    "a kernel (with native stacks), or torch.cuda.empty_cache, while others wait.",
    excluded="Nobody else waits, or most of those that wait do so there: then another rank is "
    "missing, for which the GPUs of these wait.",
    confidence=0.7,
    next_steps=("CUDA_MODULE_LOADING=EAGER", "expandable_segments:True"),
    find=_allocating,
    needs=(More("native stacks", "which call of CUDA it is in"),),
)
LAUNCH_BLOCKING = Rule(
    cause="launch-blocking-known-hang",
    title="CUDA_LAUNCH_BLOCKING with an NCCL that hangs by it",
    seen="All ranks wait, all have CUDA_LAUNCH_BLOCKING=1 and NCCL 2.14 to 2.16.",
    excluded="A rank is outside communication, or NCCL is another one.",
    confidence=0.85,
    next_steps=("Start the job without it",),
    find=_blocking,
    needs=ALIKE,
)
SYNC = Rule(
    cause="device-sync-on-stuck-stream",
    title="All ranks wait for their GPUs in front of a line that is not to blame",
    seen="No rank is outside communication, most run or wait in a line that needs a result of the "
    "GPU (.item(), .cpu(), synchronize), and no flight recorder could be read.",
    excluded="A recorder tells which operation is under way.",
    confidence=0.5,
    next_steps=("Read the flight recorders", "hangtop run"),
    find=_syncing,
    needs=(More("recorder", "which operation the GPU waits for"),),
)
