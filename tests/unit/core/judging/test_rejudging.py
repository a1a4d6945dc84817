"""Stored pictures are judged anew in time that grows with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from hangtop_core.judging.rejudging import rejudge
from support import record
from support.growth import MOST, growth

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangtop_core.model.updates import Update


def test_cost_is_linear_in_pictures() -> None:
    newest = record.load("lock")

    def work(count: int) -> Callable[[], object]:
        pictures = [_before(newest, count - number) for number in range(count)]
        return lambda: rejudge([*pictures, newest], 12.0)

    assert growth(work, 16) < MOST


def test_cost_is_linear_in_ranks_of_many_pictures() -> None:
    newest = record.load("lock")

    def work(count: int) -> Callable[[], object]:
        large = _with_ranks(newest, count)
        pictures = [_before(large, 20 - number) for number in range(20)]
        return lambda: rejudge([*pictures, large], 12.0)

    assert growth(work, 16) < MOST


def _before(update: Update, number: int) -> Update:
    """A picture from before, in which one rank differs."""
    (job,) = update.snapshot.jobs
    first, *others = job.ranks
    changed = replace(job, ranks=(replace(first, moved_at=float(number)), *others))
    snapshot = replace(update.snapshot, at=update.snapshot.at - number, jobs=(changed,))
    return replace(update, snapshot=snapshot)


def _with_ranks(update: Update, count: int) -> Update:
    (job,) = update.snapshot.jobs
    process = job.ranks[0].process
    more = [
        replace(job.ranks[0], rank=100 + at, process=replace(process, pid=9000 + at, rank=100 + at))
        for at in range(count)
    ]
    jobs = (replace(job, ranks=(*job.ranks, *more)),)
    return replace(update, snapshot=replace(update.snapshot, jobs=jobs))
