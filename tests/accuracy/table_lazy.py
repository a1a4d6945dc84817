"""Jobs that wait for a slow service, for their own import, and for a rank that nobody started."""

from __future__ import annotations

from accuracy.job import Job

LAZY: tuple[Job, ...] = (
    Job(
        "scoring-thread",
        "scoring.py thread",
        None,
        (),
        "an event loop gets an answer now and then",
        ready="step 7",
    ),
    Job(
        "lazy-import",
        "lazy.py",
        "lock-wait",
        (1,),
        "a module waits while it is imported for threads that import it",
        ready="step 7",
    ),
    Job(
        "cards",
        "cards.py",
        "rank-never-joined",
        (3,),
        "mp.spawn starts fewer ranks than world_size says",
        ready="worker 2",
        form="spawn",
    ),
)
