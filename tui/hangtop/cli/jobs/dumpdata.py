"""The output of `hangtop dump --json`: schema `hangtop.dump/1`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hangtop_core.model.snapshot import Failure

if TYPE_CHECKING:
    from hangtop_core.model.snapshot import Job, Process, Snapshot, StackSample


def as_data(snapshot: Snapshot, job: Job | None, *, all_threads: bool = False) -> dict[str, Any]:
    """Return everything a dump knows, with the stacks written out (schema `hangtop.dump/1`).

    Without a job these are the nodes, and why some of them were not observed.
    """
    ranks = []
    for rank in job.ranks if job is not None else ():
        entry = process_data(snapshot, rank.process, rank.sample, all_threads)
        children = [
            process_data(snapshot, child, rank.child_samples.get(child.pid), all_threads)
            for child in rank.children
        ]
        ranks.append({"rank": rank.rank, "node": rank.node, **entry, "children": children})
    controllers = [
        {
            "node": controller.node,
            **process_data(snapshot, controller.process, controller.sample, all_threads),
        }
        for controller in (job.controllers if job is not None else ())
    ]
    return {
        "schema": "hangtop.dump/1",
        "at": snapshot.at,
        "job": None
        if job is None
        else {
            "key": job.key,
            "id": job.id,
            "launcher": job.launcher,
            "world_size": job.world_size,
        },
        "nodes": [
            {
                "name": node.name,
                "state": node.state,
                "reason": node.reason,
                "fix": node.fix,
                "nvml": node.nvml,
                "gpus": node.gpus,
                "nics": node.nics,
            }
            for node in snapshot.nodes
        ],
        "ranks": ranks,
        "controllers": controllers,
        "unnumbered": [
            {"node": process.node, **process_data(snapshot, process, None, False)}
            for process in (job.unnumbered if job is not None else ())
        ],
    }


def denial(process: Process) -> Failure | None:
    """Return why a process that was never sampled cannot be sampled."""
    return Failure("denied", process.denied) if process.denied else None


def process_data(
    snapshot: Snapshot, process: Process, sample: StackSample | None, all_threads: bool
) -> dict[str, Any]:
    """Return a process and its stacks, or why it has none."""
    threads = sample.threads if sample is not None else ()
    return {
        "pid": process.pid,
        "role": process.role,
        "label": process.label,
        "state": process.state,
        "sampled_at": sample.at if sample is not None else None,
        "mode": sample.mode if sample is not None else None,
        "failure": sample.failure if sample is not None else denial(process),
        "threads": [
            {
                "tid": thread.tid,
                "name": thread.name,
                "active": thread.active,
                "gil": thread.gil,
                "frames": snapshot.stacks.get(thread.stack, ()),
                "locals": thread.locals,
            }
            for thread in (threads if all_threads else threads[:1])
        ],
    }
