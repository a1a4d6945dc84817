"""The verdict on flight recorders costs in proportion to them, whatever they grow in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from hangtop_core.analysis.flight import waits, world
from hangtop_core.analysis.flight.groups import group_lines
from hangtop_core.analysis.flight.picture import examine
from hangtop_core.diagnosis import to_json
from hangtop_core.report.flight import flight_text
from support.flight import Job, blamed, traces
from support.growth import MOST, growth

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SIZE = 64


def groups(
    count: int, ranks: Sequence[int] = (0, 1), first: int = 1
) -> dict[str, tuple[str, Sequence[int]]]:
    return {str(first + n): (f"g{first + n}", ranks) for n in range(count)}


def unused(n: int) -> Job:
    return Job(2, groups(n))


def alike(n: int) -> Job:
    """All groups wait, with all their ranks."""
    job = Job(2, groups(n))
    for group in job.groups:
        job.call("all_reduce", group=group, done=False)
    return job


def lacking(n: int) -> Job:
    """A rank lacks in all groups."""
    job = Job(2, groups(n))
    for group in job.groups:
        job.call("all_reduce", [0], group, done=False)
    return job


def differing(n: int) -> Job:
    """Ranks differ in each of half of the groups, and one lacks in the others."""
    job = Job(2, groups(2 * n))
    for number, group in enumerate(job.groups):
        job.call("all_reduce", [0], group, done=False)
        if number % 2:
            job.call("all_gather", [1], group, done=False)
    return job


def circle(n: int) -> Job:
    """Each of two ranks waits for the other in half of the groups, which they have used before."""
    job = Job(2, groups(2 * n))
    for _ in range(2):
        for group in job.groups:
            job.call("all_reduce", group=group)
    for number, group in enumerate(job.groups):
        job.call("all_reduce", [number % 2], group, done=False)
    return job


def unrecorded(n: int) -> Job:
    """As gloo records them: without members, so that others may have to join."""
    job = Job(4, {**groups(n), **groups(n, range(4), n + 1)}, backend="gloo")
    for group, (_, members) in job.groups.items():
        job.call("all_reduce", members if len(members) < 4 else (2, 3), group, done=False)
    return job


def let_through(n: int) -> Job:
    """Ranks differed in each group before what waits now."""
    job = Job(2, groups(n))
    for group in job.groups:
        job.call("all_reduce", [0], group).call("all_gather", [1], group)
    for group in job.groups:
        job.call("all_reduce", group=group, done=False)
    return job


def sends(n: int) -> Job:
    job = Job(2, groups(n))
    for group in job.groups:
        job.call("send", [0], group, done=False, peer=1)
    return job


def entries(n: int) -> Job:
    """One group, in which ranks differ at each of many numbers."""
    job = Job(2)
    for number in range(n):
        job.call("all_reduce", [0], sizes=((number,),), done=False)
        job.call("all_gather", [1], sizes=((number,),), done=False)
    return job


def ring(n: int) -> Job:
    """Each rank waits for the next."""
    job = Job(n, {str(rank + 1): (f"g{rank}", (rank, (rank + 1) % n)) for rank in range(n)})
    for rank in range(n):
        job.call("all_reduce", [rank], str(rank + 1), done=False)
    return job


def sizes(n: int) -> Job:
    """All ranks differ from one another."""
    job = Job(n)
    for rank in range(n):
        job.call("all_reduce", [rank], sizes=((rank,),), done=False)
    return job


def numbers(n: int) -> Job:
    """All ranks wait at another number, far more than are looked at one by one."""
    job = Job(n)
    for rank in range(n):
        job.numbers[rank, "0", False] = rank
    return job.call("all_reduce", done=False)


CASES = (unused, alike, lacking, differing, circle, unrecorded, let_through, sends, entries, ring,
         sizes)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda one: one.__name__)
def test_cost_is_linear(case: Callable[[int], Job]) -> None:
    assert growth(lambda n: judged(case(n)), SIZE) < MOST


def test_cost_is_linear_in_numbers_at_which_ranks_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "MAX_HEADS", 10)
    assert growth(lambda n: judged(numbers(n)), SIZE) < MOST


def judged(job: Job) -> Callable[[], object]:
    """Return what a person is shown of a job, as something to run."""
    some = traces(job.dumps())

    def judge() -> None:
        seen = examine(some)
        group_lines(seen.world, seen.waits)
        flight_text(seen.diagnosis, 100)
        to_json(seen.diagnosis)

    return judge


def test_a_rank_at_a_late_number_waits_for_the_last_that_is_looked_at() -> None:
    """Of three hundred ranks at different numbers the first one holds up all others."""
    ranks = 2 * waits.MAX_HEADS
    (verdict,) = examine(traces(numbers(ranks).dumps())).diagnosis.verdicts
    assert blamed(verdict) == [0]
    assert verdict.victims == tuple(range(1, ranks))


def test_lists_of_members_that_name_too_many_ranks_in_all_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten characters may name a million ranks."""
    monkeypatch.setattr(world, "MAX_MEMBERS", 1000)
    some = traces(lacking(20).dumps())
    for trace in some:
        trace.groups = tuple(
            replace(group, members=f"[0-{900 + number}]")
            for number, group in enumerate(trace.groups)
        )
    seen = examine(some)
    assert sum(len(group.members) for group in seen.world.groups if group.configured) < 2000
    assert "the members of 19 lists are not read" in flight_text(seen.diagnosis, 100)
