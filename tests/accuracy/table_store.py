"""Jobs that come to no end of init_process_group, for what the program itself gives it."""

from __future__ import annotations

from accuracy.job import Job, each

READY = r"(?s)(task \d is.*){3}"

STORE: tuple[Job, ...] = (
    Job(
        "stated-size",
        "meets.py size",
        "launch-misconfigured",
        (),
        "the world size of a config file is greater than what srun has started",
        ready=READY,
        **each(),
    ),
    Job(
        "stated-port",
        "meets.py port",
        "store-unreachable",
        (2,),
        "a rank makes its TCPStore with another port than the others",
        ready=READY,
        **each(),
    ),
    Job(
        "stated-rank",
        "meets.py number",
        "launch-misconfigured",
        (2,),
        "two processes work out the same rank",
        ready=READY,
        **each(),
    ),
)
