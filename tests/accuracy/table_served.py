"""Jobs with a service of their own beside them, which rank 0 has started."""

from __future__ import annotations

from accuracy.job import Job

SERVED: tuple[Job, ...] = (
    Job(
        "served-gather",
        "served.py gather",
        "remote-service-wait",
        (0,),
        "rank 0 awaits completions of a server that it started, and that stops in their midst",
        ready="step 7",
    ),
    Job(
        "served-client",
        "served.py client",
        "remote-service-wait",
        (0,),
        "the same, from the event loop of a thread",
        ready="step 7",
    ),
    Job(
        "served-parts",
        "served.py parts",
        None,
        (),
        "rank 0 uploads parts of a checkpoint, four at a time, each for seconds",
        ready="part 1 is there",
    ),
    Job(
        "engine-stuck",
        "engine.py stuck",
        "controller-stuck",
        (),
        "an engine that started the ranks waits for a lock; they wait for work in pipes",
        form="spawn",
        ranks="2",
    ),
    Job(
        "engine-idle",
        "engine.py idle",
        None,
        (),
        "nobody asks a server whose ranks look for work again and again",
        form="spawn",
        ranks="2",
        ready="step 11",
    ),
)
