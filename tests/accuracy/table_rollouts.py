"""Jobs that train on rollouts, and how they meet: C code, retries, restarts, other files."""

from __future__ import annotations

from accuracy.job import Job, each

STEP = r"step 6"
JOINS = r"(?s)(joins.*){3}"

ROLLOUTS: tuple[Job, ...] = (
    Job(
        "rollouts-native",
        "rollouts.py native",
        "gil-held",
        (1,),
        "a C function waits for a semaphore with the GIL, beside a thread that sleeps",
        ready=r"renders",
    ),
    Job(
        "rollouts-native-thread",
        "rollouts.py native-thread",
        "gil-held",
        (2,),
        "the same in a thread, for which the main thread looks every moment",
        ready=r"renders",
        **each(),
    ),
    Job(
        "rollouts-judge",
        "rollouts.py judge",
        "remote-service-wait",
        (2,),
        "two functions call each other for as long as a judge refuses connections",
        ready=STEP,
        **each(),
    ),
    Job(
        "rollouts-search",
        "rollouts.py search",
        None,
        (),
        "one rank searches a game to changing depths, for minutes",
        ready=r"searching",
    ),
    Job(
        "rollouts-caught",
        "rollouts.py caught",
        "missing-collective",
        (0,),
        "one rank has caught an error and waits in the store until all begin anew",
        ready=r"waiting for all",
    ),
    Job(
        "rollouts-folder",
        "rollouts.py folder",
        "launch-misconfigured",
        (0,),
        "ranks meet over a file, and one of them runs in another folder",
        ready=JOINS,
        **each(),
    ),
    Job(
        "rollouts-mpi-size",
        "rollouts.py mpi",
        "launch-misconfigured",
        (),
        "mpirun starts three ranks, with WORLD_SIZE=4 left from before",
        ready=JOINS,
        form="mpirun",
        environment=(("WORLD_SIZE", "4"),),
    ),
)
