"""That a rule which fails takes neither the session nor what is shown with it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hangtop.cli.diagnose import exit_status
from hangtop_core.analysis.verdict.base import STALLED, Hit, Rule, Subject
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.analysis.verdict.rules import RULES
from hangtop_core.judging import Judge
from hangtop_core.model import Snapshot
from hangtop_core.report import diagnosis_text
from support.build import World
from support.ends import hanging, with_gone
from support.situations import SLEEP, user

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pytest

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.diagnosis import Diagnosis
    from hangtop_core.model import Job


class Fails:
    """Judges as it should until it is told to fail."""

    broken = True

    def __call__(self, snapshot: Snapshot, job: Job | None, hang_after: float) -> Diagnosis:
        if self.broken:
            raise KeyError("a rule with a mistake")
        return diagnose(snapshot, job, hang_after)


def test_only_a_hang_with_its_verdict_is_settled() -> None:
    judge = Judge(diagnose, 30.0)
    assert not judge.settled
    world = World()
    world.waiters(3)
    world.add(user("cool_down", 41), SLEEP)
    (found,) = judge.judge(world.snapshot()).values()
    assert (found.state, bool(found.verdicts), judge.settled) == ("hung", True, True)
    judge.judge(Snapshot(at=0.0, observed_since=0.0, tick=1))
    assert not judge.settled, "there is no job"


def test_a_judgement_that_fails_is_told_and_the_last_one_stands() -> None:
    world = World()
    world.waiters(3)
    snapshot = world.snapshot()
    key = snapshot.jobs[0].key
    fails = Fails()
    judge = Judge(fails, 30.0)
    found = judge.judge(snapshot)[key]
    assert (found.state, found.verdicts, exit_status(found)) == ("unknown", (), 13)
    assert "hangtop failed to judge what it saw: KeyError" in " ".join(
        diagnosis_text(found).split()
    )
    fails.broken = False
    assert not judge.settled
    told = judge.judge(snapshot)[key]
    assert told.state == "hung"
    assert judge.settled == bool(told.verdicts)
    fails.broken = True
    for _ in range(2):
        stands = judge.judge(snapshot)[key]
        assert (stands.state, stands.verdicts) == (told.state, told.verdicts)
        spot, *others = stands.blind_spots
        assert tuple(others) == told.blind_spots
        assert spot.why.startswith(f"it is as of {told.observed_at}, for since then hangtop failed")


def test_a_judgement_on_the_end_has_what_the_job_hung_by() -> None:
    judge, snapshot = Judge(diagnose, 30.0), hanging()
    key = snapshot.jobs[0].key
    judge.judge(snapshot)
    assert not judge.kept
    over = with_gone(snapshot, 2.0, dict.fromkeys(range(4)))
    told = judge.judge(over)[key]
    assert (told.state, told.hung_until_end, judge.kept) == ("exited", True, {key})
    assert judge.before(over)[key] is told
    assert judge.judge(replace(over, at=over.at + 1))[key].hung_until_end


def test_a_rule_that_fails_hides_no_other_and_rules_nothing_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
        yield Hit(subjects=(left[0],), summary="found before it failed")
        raise KeyError("a mistake")

    engine = logging.getLogger("hangtop_core.analysis.verdict.engine")
    monkeypatch.setattr(engine, "handlers", [])  # of the tests, by which they fail
    wrong = Rule("rank-stopped", "", "", "", 0.5, (), fails, STALLED)
    world = World()
    world.waiters(3)
    world.add(user("warm_up", 40), SLEEP)
    world.add(user("cool_down", 41), SLEEP)
    snapshot = world.snapshot()
    found = diagnose(snapshot, snapshot.jobs[0], 30.0, (wrong, *RULES))
    causes = {one.cause: [culprit.rank for culprit in one.culprits] for one in found.verdicts}
    assert causes == {"rank-stopped": [3], "missing-collective": [4]}
    spot = found.blind_spots[0]
    assert spot.why == "hangtop failed to look for rank-stopped: KeyError: 'a mistake'"
    without = diagnose(snapshot, snapshot.jobs[0], 30.0, RULES)
    assert any("rank-stopped" in one.causes for one in without.ruled_out)
    failing = Rule("rank-stopped", "", "", "", 0.5, (), lambda case, left: 1 / 0, STALLED)  # type: ignore[arg-type, return-value]
    found = diagnose(snapshot, snapshot.jobs[0], 30.0, (failing, *RULES))
    assert not any("rank-stopped" in one.causes for one in found.ruled_out)


def test_verdicts_stand_where_looking_for_blind_spots_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = logging.getLogger("hangtop_core.analysis.verdict.engine")
    monkeypatch.setattr(engine, "handlers", [])  # of the tests, by which they fail
    monkeypatch.setattr("hangtop_core.analysis.verdict.engine.blind_spots", lambda *_: 1 / 0)
    world = World()
    world.waiters(3)
    world.add(user("cool_down", 41), SLEEP)
    snapshot = world.snapshot()
    found = diagnose(snapshot, snapshot.jobs[0])
    assert [one.cause for one in found.verdicts] == ["missing-collective"]
    (spot,) = found.blind_spots
    assert spot.why.startswith("hangtop failed to look for blind spots: ZeroDivisionError")
