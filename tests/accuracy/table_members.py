"""Jobs in which it counts who is a member of a group, and what handles are of."""

from __future__ import annotations

from accuracy.job import Job

MEMBERS: tuple[Job, ...] = (
    Job(
        "objects-new-group",
        "objects.py all",
        "rank-conditional-collective",
        (1,),
        "one rank gathers objects over a group of all that nobody used before",
        ready="step 5 ",
        recorded=True,
    ),
    Job(
        "halo-enough",
        "halo.py",
        "p2p-chain",
        (2,),
        "one rank leaves a loop of exchanges early, and waits for the handles of its gradients",
        ready="step 7 ",
        ranks="4",
    ),
    Job(
        "tensors-frozen",
        "tensors.py",
        "missing-collective",
        (3,),
        "one rank leaves out a call of its tensor group; stacks tell who is behind, and in what",
        ready="step 7 ",
        ranks="4",
    ),
)
