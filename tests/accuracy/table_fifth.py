"""Jobs whose ranks use several groups: in another order, or not at all.

With recorders; without them stacks tell only that ranks are in different calls.
"""

from __future__ import annotations

from accuracy.job import Job

STEP = "step 5"
INVERSION = "group-order-inversion"

FIFTH: tuple[Job, ...] = (
    Job(
        "crossing-two",
        "crossing.py branch",
        INVERSION,
        (1,),
        "of two ranks one uses the same two groups in opposite order",
        ready=STEP,
        ranks="2",
        recorded=True,
    ),
    Job(
        "crossing-three",
        "crossing.py branch",
        INVERSION,
        (2,),
        "the same of three",
        ready=STEP,
        recorded=True,
    ),
    Job(
        "crossing-loop",
        "crossing.py loop",
        INVERSION,
        (2,),
        "one line for all groups, in a loop that one rank goes through backwards",
        ready=STEP,
        recorded=True,
    ),
    Job(
        "crossing-handles",
        "crossing.py handles",
        INVERSION,
        (2,),
        "the same with handles that are waited for",
        ready=STEP,
        recorded=True,
    ),
    Job(
        "crossing-overlap",
        "crossing.py overlap",
        INVERSION,
        (1,),
        "two groups that overlap in two of four ranks",
        ready=STEP,
        ranks="4",
        recorded=True,
    ),
    Job(
        "crossing-guard",
        "crossing.py guard",
        "missing-collective",
        (2,),
        "the first group is left out by one rank: it is past the line where the others wait",
        ready=STEP,
        recorded=True,
    ),
    Job(
        "crossing-unrecorded",
        "crossing.py branch",
        INVERSION,
        (3,),
        "the recorder of a rank that only waits is off",
        ready=STEP,
        ranks="4",
        recorded=True,
        environment=(("UNRECORDED", "1"),),
    ),
    Job(
        "crossing-unrecorded-odd",
        "crossing.py branch",
        "mismatched-collective",
        (3,),
        "the recorder of the rank to blame is off: all that is left is that its call is another",
        ready=STEP,
        ranks="4",
        recorded=True,
        environment=(("UNRECORDED", "3"),),
    ),
    Job(
        "crossing-stacks",
        "crossing.py branch",
        "mismatched-collective",
        (2,),
        "without recorders it is another call, too",
        ready=STEP,
    ),
    Job(
        "meshes-crossed",
        "meshes.py crossed",
        INVERSION,
        (0, 3),
        "a device mesh: two ranks reduce gradients before activations",
        ready=STEP,
        ranks="4",
        recorded=True,
    ),
    Job(
        "meshes-norm-first",
        "meshes.py norm-first",
        INVERSION,
        (3,),
        "a device mesh: one rank sums up over all before it is done with its groups",
        ready=STEP,
        ranks="4",
        recorded=True,
    ),
    Job(
        "meshes-frozen",
        "meshes.py frozen",
        "missing-collective",
        (0, 3),
        "a device mesh: two ranks reduce no gradients",
        ready=STEP,
        ranks="4",
        recorded=True,
    ),
)
