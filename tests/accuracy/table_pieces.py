"""Ranks that work in small pieces, or whose thread that did has died."""

from __future__ import annotations

from accuracy.job import Job

PIECES: tuple[Job, ...] = (
    Job(
        "pieces-mirror",
        "pieces.py mirror",
        None,
        (),
        "it joins a thread that writes 4 KiB and sleeps, again and again",
        ready="step 7",
    ),
    Job(
        "pieces-captions",
        "pieces.py captions",
        None,
        (),
        "it sleeps 2.5 s for each of 200 things, as a service allows, and prints each",
        ready="step 7",
    ),
    Job(
        "pieces-feeder",
        "pieces.py feeder",
        "queue-wait",
        (1,),
        "the thread that filled its queue died of an exception",
        ready="step 7",
    ),
)
