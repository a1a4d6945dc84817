"""Recorded jobs once more, of whose ranks nothing tells the numbers: verdicts need none."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from hangtop_core.analysis.flight.live import picture
from hangtop_core.analysis.layout import absent, seats
from hangtop_core.analysis.verdict.blind import blind_spots
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.report.diagnosis import diagnosis_text
from hangtop_core.text.rank_sets import is_key
from support.nameless import nameless, without_numbers
from support.record import capture

if TYPE_CHECKING:
    from hangtop_core.diagnosis import Diagnosis
    from hangtop_core.model.snapshot import Job


def judged(name: str) -> tuple[Diagnosis, Diagnosis, Job]:
    """A recording's diagnosis, that of the same without numbers, and the job of that."""
    snapshot = capture(name).newest.snapshot
    other = without_numbers(snapshot)
    job = other.jobs[0]
    numbered = diagnose(replace(snapshot, outputs=()), snapshot.jobs[0])
    return numbered, diagnose(other, job), job


@pytest.mark.parametrize(
    "name",
    [
        "skip",
        "lock",
        "stopped",
        "dataloader-worker",
        "cluster",
        "nccl-skip",
        "nccl-stop",
        "nccl-absent",
        "nccl-order",
        "nccl-recv",
        "nccl-leave",
    ],
)
def test_the_verdict_is_the_same_and_names_ranks_by_their_pids(name: str) -> None:
    numbered, found, job = judged(name)
    assert found.state == numbered.state
    assert found.verdicts[0].cause == numbered.verdicts[0].cause
    pids = {one.pid for one in numbered.verdicts[0].culprits}
    assert {one.pid for one in found.verdicts[0].culprits} == pids
    text = diagnosis_text(found)
    assert re.search(r"rank \? \(.*pid \d", text)
    assert not re.search(r"\branks? \d", text), "no number is claimed"
    assert not re.search(r"\d{12}", text), "what stands for a number is not shown"
    assert all(is_key(rank.rank) for rank in job.ranks)


def test_who_is_missing_is_not_known_where_a_rank_has_no_number() -> None:
    snapshot = capture("skip").newest.snapshot
    job = replace(snapshot.jobs[0], ranks=snapshot.jobs[0].ranks[1:])
    assert absent(job) == (0,)
    mixed = replace(job, ranks=(nameless(job.ranks[0]), *job.ranks[1:]))
    assert absent(mixed) == ()
    assert seats(snapshot, mixed) == ()


def test_a_number_that_two_sources_tell_differently_is_a_blind_spot() -> None:
    snapshot = capture("skip").newest.snapshot
    first, second, *others = snapshot.jobs[0].ranks
    odd = replace(first, process=replace(first.process, rank_disputed="title says 3"))
    twin = nameless(second)
    said = "argument says 0, as that of pid 7"
    twin = replace(twin, process=replace(twin.process, rank_disputed=said))
    job = replace(snapshot.jobs[0], ranks=(twin, odd, *others))
    spots = [one for one in blind_spots(snapshot, job) if one.what == "rank number"]
    place = f"({first.node}, pid {first.process.pid})"
    assert [(one.ranks, one.why) for one in spots] == [
        (
            (twin.rank,),
            f"rank ? ({second.node}, pid {second.process.pid}) has no number: its {said}",
        ),
        ((0,), f"rank 0 {place} is numbered by RANK, which is used; its title says 3"),
    ]


def test_groups_of_recorders_are_those_that_use_them() -> None:
    """The numbers in their lists of members are nobody's."""
    job = without_numbers(capture("recorder").newest.snapshot).jobs[0]
    seen = picture(job.ranks)
    assert seen is not None
    ranks = {rank.rank for rank in job.ranks}
    assert seen.world.ranks == tuple(sorted(ranks))
    assert {rank for group in seen.world.groups for rank in group.members} <= ranks
