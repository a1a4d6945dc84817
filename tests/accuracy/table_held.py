"""Ranks that wait for what a stuck rank has, and one that saves to a full disk for ever."""

from __future__ import annotations

from accuracy.job import Job

HELD: tuple[Job, ...] = (
    Job(
        "held-lock",
        "held.py lock",
        "remote-service-wait",
        (1,),
        "it has the lock of a file that the others want, and a silent server",
        ready="rank 1 prepares",
    ),
    Job(
        "held-guard",
        "held.py guard",
        "child-process-wait",
        (1,),
        "it has made a file that the others want to make, and a program that does not end",
        ready="rank 1 prepares",
    ),
    Job(
        "held-disk",
        "held.py disk",
        "disk-full",
        (0,),
        "it saves again and again to a full disk; what it writes and prints is no progress",
        ready="attempt 0 of save",
        inside="small_disk",
    ),
)
