"""What the recorders of running ranks add where all ranks wait for one another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.columns import trace_of
from hangtop_core.model import Recorder
from hangtop_probe.columns import reduce
from support.build import FUTEX, HUNG_SINCE, NOW, Stack, World, c10d, frame, user
from support.flight import Job

if TYPE_CHECKING:
    from hangtop_core.diagnosis import Verdict

NEW_GROUP = (
    frame("_store_based_barrier", "torch/distributed/distributed_c10d.py", 1080),
    frame("new_group", "torch/distributed/distributed_c10d.py", 5860),
    *user("setup", 12),
)


def waiting(job: Job, stacks: dict[int, Stack] | None = None, **said: float | str) -> World:
    """Ranks that all wait, with the recorders of a job that was written down."""
    world = World()
    for rank, dump in job.dumps().items():
        stack = (stacks or {}).get(rank, c10d("all_reduce"))
        recorder = Recorder(**{"at": NOW, "source": "server", **said})  # type: ignore[arg-type]
        trace = trace_of(reduce(dump), rank, "test")
        recorder = Recorder(recorder.at, recorder.source, trace=trace)
        world.add(stack, FUTEX, recorder=recorder)
    return world


def judge(world: World) -> list[Verdict]:
    snapshot = world.snapshot()
    found = diagnose(snapshot, snapshot.jobs[0])
    assert found.state == "hung"
    return list(found.verdicts)


def test_all_have_joined_and_the_code_is_ruled_out() -> None:
    job = Job(4).call("all_reduce").call("all_reduce", done=False)
    [one] = judge(waiting(job))
    assert (one.cause, one.culprits, one.victims) == ("all-joined-transport", (), (0, 1, 2, 3))
    assert "Ruled out" in one.summary
    assert any(fact.source == "flight" for fact in one.evidence)


def test_it_is_over_on_some() -> None:
    job = Job(4).call("all_reduce", [0, 1, 3]).call("all_reduce", [2], done=False)
    job.call("all_reduce", [0, 1, 3], done=False)
    found = judge(waiting(job))
    assert found[0].cause == "all-joined-transport"
    assert [one.rank for one in found[0].culprits] == [2]
    assert found[0].culprits[0].node == "n1"


def test_without_the_recorder_of_one_rank_nothing_is_ruled_out() -> None:
    job = Job(4).call("all_reduce").call("all_reduce", done=False)
    world = waiting(job)
    world.waiters(1)
    assert [one.cause for one in judge(world)] == ["unknown"]


def test_a_circle_of_groups_is_seen_where_stacks_are_alike() -> None:
    groups = {"1": ("a", (0, 1)), "2": ("b", (0, 1))}
    job = Job(2, groups)
    for rank, group in ((0, "1"), (1, "2")):
        job.call("all_reduce", [rank], group=group, done=False)
    [one] = judge(waiting(job))
    assert one.cause == "group-order-inversion"
    assert [culprit.rank for culprit in one.culprits] == [0, 1]


@pytest.mark.parametrize(
    ("field", "cause"),
    [({"sizes": [[4]]}, "mismatched-size"), ({"dtype": "Half"}, "mismatched-dtype")],
)
def test_equal_calls_with_other_tensors(field: dict[str, object], cause: str) -> None:
    job = Job(4).call("all_reduce").call("all_reduce", [0, 1, 3], done=False)
    job.call("all_reduce", [2], done=False, **field)  # type: ignore[arg-type]
    [one] = judge(waiting(job))
    assert (one.cause, [culprit.rank for culprit in one.culprits]) == (cause, [2])


def test_a_file_from_before_the_hang_is_no_evidence() -> None:
    job = Job(4).call("all_reduce").call("all_reduce", done=False)
    [one] = judge(waiting(job, source="file", at=HUNG_SINCE - 60))
    assert one.cause == "unknown"
    [one] = judge(waiting(job, source="file", at=HUNG_SINCE + 60))
    assert one.cause == "all-joined-transport"


def test_a_group_that_only_some_ranks_make() -> None:
    world = World()
    world.waiters(2, NEW_GROUP)
    world.waiters(6)
    [one] = judge(world)
    assert (one.cause, [culprit.rank for culprit in one.culprits]) == (
        "subset-new-group",
        [2, 3, 4, 5, 6, 7],
    )
    assert "called by 2 of 8 ranks (ranks 0-1)" in one.summary
    assert "setup" in one.next_steps[0]
