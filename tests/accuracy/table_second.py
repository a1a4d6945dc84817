"""Second jobs for causes of slow jobs, and of networks, that had one: other programs and ways."""

from __future__ import annotations

from accuracy.job import Job, each

SECOND: tuple[Job, ...] = (
    Job(
        "cards-fastest",
        "fastest.py",
        "wrong-interface",
        (2, 3),
        "two nodes: one takes the card of its storage, which leads to no other node",
        ready="takes",
        times=4,
        inside="storage",
        form="nodes",
        ranks="4 0,1/2,3",
    ),
    Job(
        "offload-teacher",
        "offload.py",
        "memory-thrash",
        (0,),
        "the weights of a model are mapped, and bigger than the memory of the container",
        ready="(?s)(seen once more.*){2}",
        inside="cramped",
        form="spawn",
        slow=True,
    ),
    Job(
        "fused-inline",
        "fused.py",
        "compiling",
        (0,),
        "rank 0 has torch build an extension, the others are in a barrier",
        ready="needs fused_huber",
        slow=True,
    ),
    Job(
        "quota-boosting",
        "quota.py",
        "straggler",
        (1,),
        "the container of one rank may use a fiftieth of a core",
        ready="step 6",
        inside="quota",
        environment=(("CULPRIT", "1"),),
        slow=True,
        **each(),
    ),
    Job(
        "behind-gzip",
        "behind.py",
        "checkpoint-slow",
        (0,),
        "the next checkpoint waits for the thread that still compresses the last one",
        ready="waits for the one before",
        slow=True,
    ),
    Job(
        "checksum-archive",
        "checksum.py",
        "long-phase",
        (0,),
        "rank 0 waits for a program that reads a big archive, the others for its answer",
        ready="verifying",
        slow=True,
        **each("3 0,1,2"),
    ),
)
