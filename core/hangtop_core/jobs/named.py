"""Which jobs a key means, and which are no jobs but processes that the user named."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hangtop_core.model.snapshot import Job, Snapshot


def training(snapshot: Snapshot) -> tuple[Job, ...]:
    """The jobs of a snapshot, without processes that are there only because the user named them."""
    return tuple(job for job in snapshot.jobs if not only_named(job))


def only_named(job: Job) -> bool:
    """Whether this is no job but processes the user named, which are seen to be no ranks.

    The probe calls these by their pid (`hangtop_probe.ranks.scoping.restrict`). Where it may not
    read what they say of themselves, they may be ranks.
    """
    return not (job.ranks or job.launchers) and all(
        one.label == f"pid {one.pid}" and not one.denied for one in job.unnumbered
    )


def answers_to(job: Job, key: str) -> bool:
    """Whether a job goes by this key, name or run id, or meets at this HOST:PORT or PORT.

    A key may be `run 4711 gpu01:29500`, or `gpu01/net 4026532:29500` of a container with a network
    of its own: of both `gpu01:29500` and `29500` are easier to type.
    """
    places = [place for place in (job.master, *job.key.split()[-1:]) if place]
    ports = [port for place in places if (port := place.rpartition(":")[2]).isdecimal()]
    on_nodes = [f"{node}:{port}" for node in job.nodes for port in ports]
    return key in (job.key, job.name, job.id, *places, *ports, *on_nodes)
