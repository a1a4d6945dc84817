"""8,192 ranks cost little more than their distinct stacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec
import pytest

from hangtop_core.analysis.stacks import flatten, merge
from hangtop_core.analysis.verdict.engine import diagnose
from support.build import FUTEX, SLEEP, Stack, World, c10d, user
from support.large import HANG_AFTER, Large, operations

if TYPE_CHECKING:
    from hangtop_core.model import Snapshot


class Counting(Mapping[str, Stack]):
    """Stacks by key, counting how often one is looked at."""

    def __init__(self, stacks: Mapping[str, Stack]) -> None:
        self.stacks = stacks
        self.reads = 0

    def __getitem__(self, key: str) -> Stack:
        self.reads += 1
        return self.stacks[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.stacks)

    def __len__(self) -> int:
        return len(self.stacks)


def large(ranks: int) -> tuple[Snapshot, Counting]:
    world = World()
    for number in range(ranks):
        if number == ranks // 2:
            world.add(user("cool_down", 41), SLEEP, node="n7")
        else:
            world.add(c10d("all_reduce", at=56 + number % 19), FUTEX, node=f"n{number // 8}")
    counting = Counting(world.stacks)
    snapshot = world.snapshot()
    return msgspec.structs.replace(snapshot, stacks=counting), counting


@pytest.mark.parametrize("ranks", [64, 2048])
def test_stacks_are_read_once_each_however_many_ranks_share_them(ranks: int) -> None:
    snapshot, counting = large(ranks)
    found = diagnose(snapshot, snapshot.jobs[0])
    assert found.verdicts[0].culprits[0].rank == ranks // 2
    assert counting.reads <= 20
    tree = merge(snapshot, snapshot.jobs[0])
    flatten(tree)
    assert counting.reads <= 20 * 4


def test_a_verdict_looks_at_each_rank_few_times() -> None:
    """By lines of Python that run: 400 for each rank. Without what rules share they were 740."""
    large = Large(24, hang_at=-1.0)
    large.hear(0.0)
    large.sample(0.5)
    large.change(hang_at=1.0)
    for at in range(1, 9):
        large.hear(float(at))
    large.sample(9.0)
    large.hear(30.0)
    snapshot, job, diagnosis = large.picture(30.0)
    assert diagnosis.verdicts[0].cause == "missing-collective"
    assert operations(lambda: diagnose(snapshot, job, HANG_AFTER)) < 500 * len(job.ranks)
