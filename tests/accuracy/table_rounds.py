"""Jobs in which one rank goes on early: out of a loop, or without its part of a chain."""

from __future__ import annotations

from accuracy.job import Job

ROUNDS: tuple[Job, ...] = (
    Job(
        "rounds-short",
        "rounds.py short",
        "uneven-inputs",
        (1,),
        "one rank has fewer batches, and the loop over them is in a callee",
        ready="step 8",
    ),
    Job(
        "rounds-parts",
        "rounds.py parts",
        "mismatched-collective",
        (1,),
        "one rank skips a part of a batch for which memory does not suffice",
        ready="out of memory",
    ),
    Job(
        "relay-dropped",
        "relay.py",
        "p2p-chain",
        (3,),
        "the last stage sends no gradient of a batch that it drops, and reduces the loss",
        ready="step 8",
        ranks="4",
    ),
)
