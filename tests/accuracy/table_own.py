"""Jobs of which a rank waits for what is its own: lock files, programs, threads, pools."""

from __future__ import annotations

from accuracy.job import Job


def _own(way: str, cause: str | None, what: str) -> Job:
    blamed = () if cause is None else (1,)
    return Job(f"own-{way}", f"own.py {way}", cause, blamed, what, ready="step 10", ranks="2")


OWN: tuple[Job, ...] = (
    _own("lockdir", "file-lock", "a directory that is a lock is left over, and tried again"),
    _own("lockgone", "file-lock", "a rank looks again and again until a file is gone"),
    _own("unflushed", "child-process-wait", "a rank asks a program, and has not flushed"),
    _own("refused", "remote-service-wait", "a service refuses connections, and is tried again"),
    _own("cross", "lock-wait", "two threads take two locks in another order"),
    _own("mapped", "queue-wait", "tasks of a pool of threads wait for tasks of that pool"),
    _own("one-task", None, "a pool whose workers take one task each"),
    _own("programs", None, "a program is run again and again, a second each time"),
)
