"""Jobs in which some ranks wait for each other in sends and receives, and others behind them."""

from __future__ import annotations

from accuracy.job import Job


def _dropped(schedule: str, culprits: tuple[int, ...], what: str) -> Job:
    return Job(
        f"dropped-{schedule}",
        f"dropped.py {schedule}",
        "p2p-deadlock",
        culprits,
        what,
        ready="dropped a micro-batch",
        ranks="4",
    )


KNOTS = (
    _dropped("waves", (1, 2), "a pipeline stage drops a micro-batch: two against two in recv"),
    _dropped("posted", (2, 3), "likewise where all wait at one line for what they have posted"),
)
