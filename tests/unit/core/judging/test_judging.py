"""That a rule which fails takes neither the session nor what is shown with it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from hangtop.cli.jobs.observe import exit_status
from hangtop_core.analysis.verdict.base import STALLED, Hit, Rule, Subject
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.analysis.verdict.rules import RULES
from hangtop_core.judging.judging import Judge
from hangtop_core.model.recurring import Wait
from hangtop_core.model.snapshot import Snapshot
from hangtop_core.report.diagnosis import diagnosis_text
from support.build import NOW, World
from support.ends import hanging, with_gone
from support.situations import RUN, SLEEP, user

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pytest

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.diagnosis import Diagnosis
    from hangtop_core.model.snapshot import Job
    from support.situations import Facts


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


def stuck(at: float = NOW, slept: float = 60.0, facts: Facts = SLEEP, **job: Any) -> Snapshot:
    """A job in which one rank has slept, or runs, for so long, and the others wait for it."""
    world = World(at=at)
    world.waiters(3, moved_at=at - 60.0)
    world.add(user("cool_down", 41), facts, moved_at=at - slept, **job)
    return world.snapshot()


def test_a_hang_stays_one_until_somebody_makes_progress() -> None:
    judge = Judge(diagnose, 30.0)
    (hung,) = judge.judge(stuck()).values()
    assert hung.state == "hung"
    # WHEN the rank is in native code the next time, where nothing shows whether it gets on
    native = {"main_cpu_share": 0.9, "sample": {"active": True}}
    unclear = stuck(NOW + 5, facts=RUN, **native)
    assert diagnose(unclear, unclear.jobs[0], 30.0).state == "unknown"
    (held,) = judge.judge(unclear).values()
    # THEN it is called hung all the same, as it was, and for longer
    assert (held.state, held.verdicts, exit_status(held)) == ("hung", hung.verdicts, 10)
    assert (hung.hung_for_s, held.hung_for_s) == (60.0, 65.0)
    assert held.observed_at != hung.observed_at
    # UNTIL it was seen to go on
    moved = {"same_functions_since": NOW + 19}
    (over,) = judge.judge(stuck(NOW + 20, slept=1.0, sample=moved)).values()
    assert over.state == "progressing"
    (after,) = judge.judge(unclear).values()
    assert after.state == "unknown"


def test_steps_that_vary_leave_a_job_slow() -> None:
    def steps(at: float, *lasted: float) -> Snapshot:
        world = World(at=at)
        ends = [(at - 8 * n, took) for n, took in enumerate(lasted, 1)]
        waits = tuple(Wait(end - took, end, True) for end, took in reversed(ends))
        world.waiters(3, waits=waits, moved_at=at - 1, left_at=at - 1)
        world.add(user("augment", 41), RUN, sample={"same_functions_since": at - 1})
        return world.snapshot()

    judge = Judge(diagnose, 30.0)
    (slow,) = judge.judge(steps(NOW, 6.0, 6.0, 6.0)).values()
    assert slow.state == "slow"
    # WHEN the last steps were short, for a moment, and for good
    states = [
        next(iter(judge.judge(steps(NOW + after, 2.0, 2.0)).values())).state
        for after in (1, 29, 31, 32)
    ]
    assert states == ["slow", "slow", "progressing", "progressing"]


def test_ranks_of_another_attempt_do_not_inherit_a_hang() -> None:
    judge = Judge(diagnose, 30.0)
    judge.judge(stuck())
    native = {"main_cpu_share": 0.9, "sample": {"active": True}, "process": {"pid": 9999}}
    (found,) = judge.judge(stuck(NOW + 5, facts=RUN, **native)).values()
    assert found.state == "unknown"
