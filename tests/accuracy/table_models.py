"""Jobs as people write them for large models: micro-batches, stages, savers, answers."""

from __future__ import annotations

from accuracy.job import Job

MODELS: tuple[Job, ...] = (
    Job(
        "answers-generate",
        "answers.py generate",
        None,
        (),
        "rank 0 generates, and sleeps 30 ms for each token",
        ready=r"generated [3-9]",
    ),
    Job(
        "answers-look",
        "answers.py look",
        "missing-collective",
        (0,),
        "rank 0 looks for a file as often, and prints; so does a thread of it",
    ),
    Job(
        "micro-unused",
        "micro.py unused",
        "missing-collective",
        (1,),
        "DDP with accumulation: a parameter is not used on one rank",
        recorded=True,
    ),
    Job(
        "micro-tail",
        "micro.py tail",
        "uneven-inputs",
        (2,),
        "DDP with accumulation: one rank has one reduction more in its last step",
        ready=r"step 11",
    ),
    Job(
        "stages-crossed",
        "stages.py",
        "p2p-deadlock",
        (1, 3),
        "both stages of a pipeline send; those of the other wait to reduce",
        ranks="4",
    ),
    Job(
        "savers-full",
        "savers.py full",
        "remote-service-wait",
        (1,),
        "a rank waits for its thread, which sends to a store that reads no more",
        ready=r"step 9",
    ),
    Job(
        "savers-locked",
        "savers.py locked",
        "file-lock",
        (1,),
        "a rank waits for its thread, which wants the lock of another program",
        ready=r"step 9",
    ),
)
