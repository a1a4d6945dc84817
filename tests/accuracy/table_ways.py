"""Jobs in which a rank leaves the way of the others: recorders show it, and stacks tell why."""

from __future__ import annotations

from accuracy.job import Job

WAYS: tuple[Job, ...] = (
    Job(
        "ways-save",
        "ways.py save",
        "rank-conditional-collective",
        (0,),
        "FSDP2 in a mesh: one rank gathers the state under `if self.is_main_process:`",
        ready="step 7",
        ranks="4",
        recorded=True,
    ),
    Job(
        "ways-short",
        "ways.py short",
        "uneven-inputs",
        (2,),
        "gradients are reduced by the program itself, and one rank has fewer batches",
        ready="step 8",
        recorded=True,
    ),
    Job(
        "ways-accumulate",
        "ways.py accumulate",
        "mismatched-collective",
        (1,),
        "one rank reduces gradients half as often from then on, in a loop of attempts",
        ready="halved",
        recorded=True,
    ),
)
