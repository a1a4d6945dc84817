"""Jobs that get on slowly with hardly any CPU, and jobs that hang beside something that does."""

from __future__ import annotations

from accuracy.job import Job

AT_SEVEN = "step 7"


def _slow(way: str, what: str) -> Job:
    return Job(f"uploads-{way}", f"uploads.py {way}", None, (), what, ready=AT_SEVEN, ranks="2")


def _hung(way: str, cause: str, what: str) -> Job:
    return Job(f"uploads-{way}", f"uploads.py {way}", cause, (0,), what, ready=AT_SEVEN, ranks="2")


SLOW: tuple[Job, ...] = (
    Job(
        "draws",
        "draws.py",
        "busy-in-python",
        (1,),
        "a sampler of one rank accepts nothing, for more than ten times the hang time",
        ready="waited long",
    ),
    _slow("join", "rank 0 joins a thread that downloads ten kilobytes a second"),
    _slow("future", "rank 0 waits for a future of an upload as slow, over a socket with a timeout"),
    _slow("queue", "rank 0 waits until a queue is worked off by a thread that downloads slowly"),
    _slow("poll", "rank 0 asks every half second whether a slow upload is done"),
    _slow("loop", "rank 0 waits for a slow upload in the event loop of a thread"),
    _slow("main", "rank 0 uploads slowly itself"),
    _slow("process", "rank 0 joins a process that uploads slowly"),
    _hung("hung-lock", "lock-wait", "rank 0 takes a lock twice; a thread sends a heartbeat"),
    _hung("hung-loop", "lock-wait", "rank 0 joins a thread that waits, beside a heartbeat"),
    _hung("hung-future", "queue-wait", "rank 0 waits for a future, beside a slow download"),
)
