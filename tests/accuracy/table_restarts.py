"""Ranks that torchrun has started anew, with what the attempt before left in its store."""

from __future__ import annotations

from accuracy.job import Job

RESTARTS: tuple[Job, ...] = (
    Job(
        "restarts-old-addresses",
        "restarts.py",
        "rendezvous-incomplete",
        (),
        "started anew, a rank reads the address that another had in the attempt before",
        # Whether both wait is up to their ports, for one attempt in six; others fail at once.
        ready="still joining in attempt [1-9]",
        ranks="2",
        environment=(("PET_MAX_RESTARTS", "60"),),
    ),
)
