"""Jobs by their keys, and groups that are no jobs but processes that the user named."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hangtop_core.model.snapshot import Job, Snapshot


def training(snapshot: Snapshot) -> tuple[Job, ...]:
    """Return the jobs of a snapshot, without groups that only exist because the user named them."""
    return tuple(job for job in snapshot.jobs if not only_named(job))


def only_named(job: Job) -> bool:
    """Return whether this is no job but processes that the user named and that are no ranks.

    The probe labels these by their pid (`hangtop_probe.ranks.scoping.restrict`). Processes that it
    may not read may be ranks.
    """
    return not (job.ranks or job.launchers) and all(
        process.label == f"pid {process.pid}" and not process.denied for process in job.unnumbered
    )


def answers_to(job: Job, key: str) -> bool:
    """Return whether a job has this key, name or run id, or this store as HOST:PORT or PORT.

    A key may be `run 4711 gpu01:29500`, or `gpu01/net 4026532:29500` for a container with its own
    network: for both, `gpu01:29500` and `29500` are easier to type.
    """
    places = [place for place in (job.master, *job.key.split()[-1:]) if place]
    ports = [port for place in places if (port := place.rpartition(":")[2]).isdecimal()]
    on_nodes = [f"{node}:{port}" for node in job.nodes for port in ports]
    return key in (job.key, job.name, job.id, *places, *ports, *on_nodes)
