"""Every scenario of the gallery, hung for real and diagnosed by the real command."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hangtop.demo.gallery import BY_NAME, GALLERY
from hangtop.demo.runner import missing
from hangtop_core.diagnosis import MAKES_PROGRESS
from support.documents import misfits
from support.jobs import Outcome, ScenarioPool

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.real

HANG_AFTER = 8.0
"""Seconds without progress that count as a hang here; the default is far longer."""
HUNG = [scenario.name for scenario in GALLERY if scenario.hangs]
HEALTHY = [scenario.name for scenario in GALLERY if not scenario.hangs]


@pytest.fixture(scope="module")
def pool(request: pytest.FixtureRequest) -> Iterator[ScenarioPool]:
    """Outcomes of the scenarios that were selected and can run here, in the order of the tests."""
    asked = [
        item.callspec.params.get("name")
        for item in request.session.items
        if item.module is request.module and hasattr(item, "callspec")
    ]
    names = dict.fromkeys(name for name in asked if name and missing(BY_NAME[name]) is None)
    scenarios = ScenarioPool(names, HANG_AFTER)
    yield scenarios
    scenarios.close()


def outcome_of(name: str, pool: ScenarioPool) -> Outcome:
    if reason := missing(BY_NAME[name]):
        pytest.skip(reason)
    outcome = pool.outcome(name)
    assert not outcome.left, f"processes that survived the end of the job: {outcome.left}"
    return outcome


@pytest.mark.parametrize("name", HUNG)
def test_hang_is_explained(name: str, pool: ScenarioPool) -> None:
    outcome = outcome_of(name, pool)
    scenario = outcome.scenario
    assert misfits(outcome.diagnosis) == []
    assert outcome.diagnosis["state"] == "hung", outcome.told()
    assert outcome.exit_code == 10, outcome.told()
    assert outcome.first["cause"] == scenario.cause, outcome.told()
    assert outcome.culprits == scenario.culprits, outcome.told()
    assert set(outcome.first["victims"]).isdisjoint(scenario.culprits), outcome.told()
    assert outcome.first["evidence"], outcome.told()
    assert outcome.first["next_steps"], outcome.told()


SLOW = {"slow-compute": [("straggler", 2)], "slow-step": [("straggler", 1)]}
"""What is told of those that get on slowly, once steps have shown it."""


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_job_is_not_called_hung(name: str, pool: ScenarioPool) -> None:
    outcome = outcome_of(name, pool)
    allowed = MAKES_PROGRESS if name in SLOW else {"progressing"}
    assert outcome.diagnosis["state"] in allowed, outcome.told()
    assert outcome.exit_code == 0, outcome.told()
    # Whom all others wait for in each step is slow: that may be told beside it.
    told = [(one["cause"], one["culprits"][0]["rank"]) for one in outcome.diagnosis["verdicts"]]
    assert told in ([], SLOW.get(name, [])), outcome.told()
