"""Jobs that are slow in steps, or whose work is done by a child; and the same that hang."""

from __future__ import annotations

from accuracy.job import Job

EVALUATES = "evaluating"


def _evaluates(way: str, what: str) -> Job:
    what = f"rank 0 evaluates, the other is in a barrier: {what}"
    name, command = f"evaluator-{way}", f"evaluator.py {way}"
    return Job(name, command, None, (), what, ready=EVALUATES, ranks="2")


PACES: tuple[Job, ...] = (
    _evaluates("native", "its loader worker needs 6 s of native code for a batch"),
    _evaluates("varies", "its loader worker runs plain Python, 1 to 14 s for a batch"),
    _evaluates("trickle", "its loader worker reads a file of which a byte comes every 2 s"),
    _evaluates("scorer", "it reads what a program prints that computes 7 s for each line"),
    Job(
        "evaluator-endless",
        "evaluator.py endless",
        "dataloader-worker-stuck",
        (0,),
        "rank 0 evaluates, and the loop of its loader worker never ends; the other is in a barrier",
        ready=EVALUATES,
        ranks="2",
    ),
    Job(
        "unequal-third",
        "unequal.py 3 1",
        "straggler",
        (1,),
        "rank 1 needs three times as long for each step, of 3 s",
        ready="step 1",
        ranks="2",
        slow=True,
    ),
    Job(
        "unequal-none",
        "unequal.py 8 8",
        None,
        (),
        "every rank needs 8 s for each step",
        ready="step 1",
        ranks="2",
    ),
    Job(
        "sameport",
        "sameport.py",
        "store-port-taken",
        (0,),
        "the same job is started twice with one MASTER_PORT: rank 0 of the second cannot listen",
        ready="started twice",
        form="spawn",
        ranks="2",
    ),
)
