"""What takes doubles here: threads that pin memory, on an accelerator that has nothing but a name;
and a node whose torch says that it is another one."""

from __future__ import annotations

from accuracy.job import Job

DOUBLES: tuple[Job, ...] = (
    Job(
        "pinned-buffers-kept",
        "staging.py keep",
        "pin-memory-stuck",
        (1,),
        "a rank keeps odd batches, and with them the last of the buffers they are pinned in",
        ready="step 6",
    ),
    Job(
        "pinned-lock",
        "ragged.py --forget 2",
        "pin-memory-stuck",
        (2,),
        "a hook of a trainer returns with the lock that batches take while they are pinned",
        ready="step 7",
    ),
    Job(
        "pinned-healthy",
        "staging.py",
        None,
        (),
        "batches are pinned in a few buffers, which come back",
        ready="step 6",
        ranks="2",
    ),
    Job(
        "older-torch",
        "tracers.py",
        "version-mismatch",
        (2, 3),
        "two nodes: by the torch that they have, ranks exchange edges in another order",
        ready="day 7",
        times=4,
        form="nodes",
        ranks="2",
        inside="older_torch",
    ),
)
