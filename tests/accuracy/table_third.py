"""Jobs by somebody who had read HANGS and not the rules: those that were told wrongly at first.

What was wrong in the rules, and how the others of them did, is in `history.md`.
"""

from __future__ import annotations

from accuracy.job import Job

STEP = r"step [789]\b"

THIRD: tuple[Job, ...] = (
    # Collectives
    Job(
        "nightly-barrier",
        "nightly.py barrier",
        "rank-conditional-collective",
        (0,),
        "DDP: a barrier stands under `if rank == 0`, in the loop",
        ready="step 6",
    ),
    Job(
        "nightly-dcp",
        "nightly.py dcp",
        "rank-conditional-collective",
        (0,),
        "DDP: rank 0 alone saves by torch.distributed.checkpoint",
        ready="step 6",
    ),
    Job(
        "nightly-unwrapped",
        "nightly.py unwrapped",
        "mismatched-collective",
        (1,),
        "all but one rank wrap their model anew",
        ready="step 6",
    ),
    Job(
        "nightly-crossed",
        "nightly.py crossed",
        "mismatched-collective",
        (1,),
        "one helper reduces gradients and metrics, and one rank calls it for these in turn",
        ready="step 6",
    ),
    # Python and files
    Job(
        "feed-sqlite",
        "feed.py sqlite",
        "file-lock",
        (1,),
        "a rank waits for a database that rank 0 has not committed to",
        ready=STEP,
    ),
    Job(
        "studio-baton",
        "studio.py baton",
        "file-lock",
        (1,),
        "a rank waits for the baton of a build that was killed",
        ready=STEP,
    ),
    Job(
        "studio-exclusive",
        "studio.py exclusive",
        "file-lock",
        (),
        "a barrier inside of a lock that all want",
        ready=STEP,
    ),
    Job(
        "studio-actors",
        "studio.py actors",
        "queue-wait",
        (1,),
        "the process that fills a queue was killed",
        ready=STEP,
    ),
    # Not hung
    Job(
        "feed-trickle",
        "feed.py trickle",
        None,
        (),
        "rank 0 downloads ten kilobytes a second",
        ready="step 7",
    ),
    Job(
        "feed-stream",
        "feed.py stream --workers 2",
        None,
        (),
        "loader workers ask a service that needs nine seconds for an answer",
        ready="step 55",
    ),
    Job(
        "studio-background",
        "studio.py background",
        None,
        (),
        "rank 0 joins the thread that still writes the checkpoint before",
        ready="step 57",
    ),
    Job(
        "studio-judge",
        "studio.py judge",
        None,
        (),
        "ranks poll a queue for episodes that processes need long for",
        ready="step 9",
    ),
)
