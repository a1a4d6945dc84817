"""A job that hangs, gives up, is started again by torchrun, and ends."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from hangtop.cli.main import main
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.capture import Facts, save
from hangtop_core.model.updates import Options, Update
from hangtop_core.session.session import Session
from hangtop_core.state.history import History
from support.launch import torchrun
from support.processes import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real
GIVES_UP_S = 12
"""Seconds after which gloo ends the wait for rank 1."""


@pytest.fixture(scope="module")
def history() -> History:
    """All that a session has seen of it."""
    kept = History()

    def is_over(update: Update) -> bool:
        told = update.diagnoses.values()
        return any(one.state == "exited" and one.past_attempts for one in told)

    with torchrun("ends", str(GIVES_UP_S), nproc=2, env={"PET_MAX_RESTARTS": "1"}) as job:
        options = Options(hang_after=4.0, sample_every=1.0, pids=(job.pid,))
        with Session(options, diagnose) as session:
            session.subscribe(kept.add)
            seen = session.wait(is_over, PATIENCE)
            assert seen is not None, states(session.latest)
            kept.add(seen)
    return kept


def states(update: Update | None) -> list[object]:
    """What a failure shows: the states of ranks and jobs."""
    if update is None:
        return []
    ranks = [rank.state for job in update.snapshot.jobs for rank in job.ranks]
    return [
        (one.state, one.attempt, one.past_attempts != ()) for one in update.diagnoses.values()
    ] + ranks


def told(history: History) -> Any:
    (found,) = history.pictures[-1].diagnoses.values()
    return found


def test_the_attempt_that_hung_is_told_by_what_it_hung_by(history: History) -> None:
    diagnosis = told(history)
    (first,) = diagnosis.past_attempts
    assert (first.number, diagnosis.attempt.number, diagnosis.attempt.of) == (1, 2, 2)
    assert GIVES_UP_S - 4 < first.ended.after_hanging_s < 5 * GIVES_UP_S
    assert first.verdicts[0].cause == "missing-collective"
    assert [culprit.rank for culprit in first.verdicts[0].culprits] == [1]


def test_a_capture_taken_then_tells_the_same(
    history: History, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "over.hangtop"
    save(path, history.pictures, Facts(hang_after=4.0))
    main(["diagnose", "--json", str(path)])
    found = json.loads(capsys.readouterr().out)
    assert found["state"] == "exited"
    (first,) = found["past_attempts"]
    assert first["ended"]["after_hanging_s"] == told(history).past_attempts[0].ended.after_hanging_s
    assert first["verdicts"][0]["culprits"][0]["rank"] == 1
