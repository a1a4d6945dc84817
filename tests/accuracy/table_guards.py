"""Jobs in which ranks turn back before a collective, or catch what keeps them from it."""

from __future__ import annotations

from accuracy.job import Job

GUARDS: tuple[Job, ...] = (
    Job(
        "guards-metric",
        "guards.py metric",
        "rank-conditional-collective",
        (0,),
        "a mean over all ranks, below `if not is_main_process(): return`",
        ready="step [78]",
    ),
    Job(
        "guards-first",
        "guards.py preprocess",
        "rank-conditional-collective",
        (0,),
        "a collective in `with main_process_first():`, while the others wait for that",
        ready="step [78]",
        recorded=True,
    ),
    Job(
        "guards-caught",
        "guards.py caught",
        "mismatched-collective",
        (2,),
        "one rank logs an exception in its evaluation, and goes on with the next step",
        ready="step [78]",
    ),
)
