"""Jobs by somebody who knew the catalogue of hangs and not the rules.

Those of `nightly`, `feed` and `studio` were told wrongly at first; those of `loops` were written
after the rules were mended. What was wrong, and how the others did, is in `history.md`.
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
        "rank-conditional-collective|mismatched-collective",
        (1,),
        "all but one rank wrap their model anew, under `if rank != 1`",
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
    # Kept out while the rules were mended
    Job(
        "loops-zero-log",
        "loops.py zero-log",
        "rank-conditional-collective",
        (0,),
        "rank 0 alone logs, and meets the others in what it calls there",
        ready=STEP,
    ),
    Job(
        "loops-nb-lock",
        "loops.py nb-lock",
        "file-lock",
        (),
        "a barrier inside of a lock that the others try every half second",
        ready=STEP,
    ),
    Job(
        "loops-short",
        "loops.py short",
        "uneven-inputs",
        (1,),
        "one rank has fewer batches, and validates",
        ready=STEP,
    ),
    Job(
        "loops-pipe-log",
        "loops.py pipe-log",
        None,
        (),
        "rank 0 reads the lines of a tool that prints one every three seconds",
        ready=STEP,
    ),
)
