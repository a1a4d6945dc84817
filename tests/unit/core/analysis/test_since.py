"""Since when a job hangs: by what its ranks and their recorders did last."""

from __future__ import annotations

import pytest

from hangtop_core.analysis.progress import Progress
from hangtop_core.analysis.since import hung_since
from hangtop_core.analysis.standing import Standing
from hangtop_core.model.recorder.trace import Trace
from hangtop_core.model.snapshot import Job, Process, Rank, Recorder, Snapshot

BEGAN, NOW = 1000.0, 1040.0
WATCHED = Standing(BEGAN + 1.0, NOW, False, NOW)
"""Of a rank that spins: it has got nowhere since it was first sampled."""


def waits(since: float) -> Standing:
    return Standing(since, NOW, since > BEGAN, NOW)


def rank(
    number: int,
    newest: float | None = None,
    state: str = "sleeping",
    moved_at: float | None = None,
) -> Rank:
    process = Process(100 + number, 1, 1, 0.0, "rank", "a rank", "S", node="n1")
    trace = Trace(number, "", newest_ns=int((newest or 0.0) * 1e9))
    recorder = None if newest is None else Recorder(NOW, trace=trace)
    return Rank(number, "n1", state, process, recorder=recorder, moved_at=moved_at)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ranks", "standings", "since"),
    [
        ((rank(0), rank(1)), (waits(400.0), waits(390.0)), 400.0),
        ((rank(0), rank(1)), (waits(400.0), WATCHED), 400.0),
        ((rank(0, 420.0), rank(1, 430.0)), (WATCHED, WATCHED), 430.0),
        ((rank(0), rank(1, 430.0)), (waits(400.0), WATCHED), 430.0),
        ((rank(0), rank(1)), (WATCHED, WATCHED), BEGAN + 1.0),
        ((rank(0), rank(1)), (waits(400.0), waits(1010.0)), 1010.0),
        ((rank(0, 1030.0), rank(1)), (WATCHED, WATCHED), BEGAN + 1.0),
        ((rank(0), rank(1, state="exited")), (WATCHED, waits(400.0)), BEGAN + 1.0),
        ((rank(0), rank(1, moved_at=1035.0)), (waits(400.0), waits(998.0)), 400.0),
    ],
    ids=[
        "by the scheduler",
        "one spins, one is known to wait",
        "by recorders",
        "a recorder after the others began to wait",
        "nothing is known",
        "it was seen to move",
        "never younger than it was seen",
        "one that has left says nothing",
        "one that looks every few seconds may have looked before",
    ],
)
def test_since_when_it_hangs(
    ranks: tuple[Rank, ...], standings: tuple[Standing, ...], since: float
) -> None:
    job = Job("k", "train", None, None, 2, None, ranks)
    snapshot = Snapshot(NOW, BEGAN, 1, (), (job,))
    last = max(one.since for one in standings)
    assert hung_since(snapshot, job, Progress("hung", last, NOW - last, standings)) == since
