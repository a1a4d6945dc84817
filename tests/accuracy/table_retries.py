"""Ranks that wait for a thread that tries again, or that is not there after a fork."""

from __future__ import annotations

from accuracy.job import Job

RETRIES: tuple[Job, ...] = (
    Job(
        "retries-upload",
        "retries.py upload",
        "remote-service-wait",
        (1,),
        "its queue is full: the thread that empties it is refused by a service, and tries again",
        ready="attempt 2",
        form="spawn",
    ),
    Job(
        "retries-limited",
        "retries.py limited",
        None,
        (),
        "a service tells it to come later three times now and then, and it gets on",
        ready="attempt 2",
        form="spawn",
    ),
    Job(
        "retries-forked",
        "retries.py forked",
        "fork-deadlock",
        (1,),
        "its worker waits for a pool whose thread was started before the fork",
        ready="(?s)(step 0.*){3}",
        form="spawn",
    ),
)
