"""A loop that one rank leaves alone, and a download that others wait for."""

from __future__ import annotations

from accuracy.job import Job

STOPS: tuple[Job, ...] = (
    Job(
        "stops-alone",
        "stops.py alone",
        "missing-collective",
        (1,),
        "one rank is done by its own loss, and leaves `while not self.done:`",
        ready="step 8",
    ),
    Job(
        "stops-fetch",
        "stops.py fetch",
        "long-phase",
        (0,),
        "the others wait in a barrier while rank 0 reads from a slow server, and gets on",
        ready="some of the weights",
        slow=True,
    ),
)
