"""Cores as text in the layout of live stacks, and as the model of live stacks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hangtop_core.model.snapshot import (
    Frame,
    Job,
    Process,
    Rank,
    Snapshot,
    StackSample,
    ThreadStack,
)
from hangtop_core.report.diagnosis import wrap
from hangtop_core.report.stacks import merged_text, sample_lines
from hangtop_core.stacks.merging import merge
from hangtop_core.text.clean import clean, plural, size
from hangtop_core.text.rank_sets import rank_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.cores.read import Core
    from hangtop_core.cores.threads import CoreThread

UNKNOWN_NODE = "?"


def snapshot_of(cores: Sequence[Core], *, all_threads: bool) -> tuple[Snapshot, Job]:
    """Return cores as a snapshot of ranks at their end.

    Ranks without a number get distinct negative numbers.
    """
    stacks: dict[str, tuple[Frame, ...]] = {}
    ranks = []
    for place, core in enumerate(cores):
        samples = []
        for number, thread in enumerate(shown(core, all_threads=all_threads)):
            key = f"{place}/{number}"
            stacks[key] = thread.frames
            samples.append(
                ThreadStack(thread.tid, thread.name, number == 0, thread.gil, key, thread.locals)
            )
        process = Process(
            pid=core.pid,
            ppid=0,
            start=0,
            started_at=core.modified,
            role="rank",
            label="rank",
            state="X",
            cmdline=(core.command,),
            rank=core.rank,
        )
        ranks.append(
            Rank(
                rank=core.rank if core.rank is not None else -1 - place,
                node=core.node or UNKNOWN_NODE,
                state="exited",
                process=process,
                sample=StackSample(core.modified, 0.0, "native", tuple(samples)),
            )
        )
    nodes = tuple(sorted({rank.node for rank in ranks}))
    at = max((core.modified for core in cores), default=0.0)
    job = Job("cores", "cores", None, None, None, None, ranks=tuple(ranks), nodes=nodes)
    return Snapshot(at, at, 0, jobs=(job,), stacks=stacks), job


def shown(core: Core, *, all_threads: bool) -> list[CoreThread]:
    """Return the thread that got the signal and those that run Python, or all threads."""
    return [
        thread
        for number, thread in enumerate(core.threads)
        if thread.frames and (all_threads or number == 0 or thread.python)
    ]


def merged(cores: Sequence[Core], width: int, *, libraries: bool, ascii_only: bool) -> str:
    """Return the merged stacks of one job's ranks: of each the thread that got the signal."""
    snapshot, job = snapshot_of(cores, all_threads=False)
    tree = merge(snapshot, job, libraries=libraries)
    return merged_text(tree, width, job=job, ascii_only=ascii_only)


def lines(
    core: Core, width: int, *, all_threads: bool = False, with_locals: bool = False
) -> Iterator[str]:
    """Yield one core: its end and cause, what could not be read, then its stacks."""
    yield from head(core, width)
    for explanation in core.explanations:
        yield from wrap(explanation.text, width, "  why: ", "       ")
        for step in explanation.steps:
            yield from wrap(step, width, "    - ", "      ")
    for problem in core.problems:
        yield from wrap(problem, width, "  not read: ", "            ")
    snapshot, job = snapshot_of([core], all_threads=all_threads)
    sample = job.ranks[0].sample
    if sample is None or not sample.threads:
        yield "  no stack"
        return
    for number, line in enumerate(sample_lines(snapshot, sample, with_locals=with_locals)):
        yield line + ("   <- got the signal" if number == 0 and core.signal else "")
    left = len(core.threads) - len(sample.threads)
    if left > 0:
        yield f"  {plural(left, 'more thread')} without Python frames (--all-threads)"


def head(core: Core, width: int) -> Iterator[str]:
    """Yield the rank of a core, and how it ended."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(core.modified))
    yield from wrap(f"{clean(core.path, 400)}: {size(core.size)}, written {when}", width, "", "  ")
    of = f" of {core.world_size}" if core.world_size is not None else ""
    lacks = "a process whose rank is unknown (the core lacks its environment)"
    none = lacks if core.role == "unknown" else "a process that is no rank"
    subject = f"{rank_name(core.rank)}{of}" if core.rank is not None else none
    if core.role == "dataloader-worker":
        subject = f"a DataLoader worker of {subject}"
    on = f" on {clean(core.node, 80)}" if core.node else ""
    yield from wrap(
        f"{subject}{on}, pid {core.pid}: {clean(core.command, 200)}", width, "  ", "    "
    )
    yield from wrap(f"ended by {core.how}" if core.signal else core.how, width, "  ", "    ")
