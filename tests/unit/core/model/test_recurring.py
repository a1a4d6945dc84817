"""How long waits took and when data came, as it is remembered of ranks and of their workers."""

from __future__ import annotations

import pytest

from hangtop_core.model.recurring import KEPT, Recurring, Wait
from support.pieces import EPOCH, child, meters, process
from support.stored import Bench


def test_what_a_main_thread_reads_however_little_is_remembered() -> None:
    bench = Bench()
    bench.fold(0, process(100, 0, meters=meters(main_read_bytes=9)), child(200, 100))
    for second, read in ((5, 9), (6, 300), (6.5, 310), (12, 600)):
        told = meters(main_last_ran_s=0.1, read_bytes=read, main_read_bytes=read)
        bench.fold(second, {"pid": 100, "meters": told})
    bench.fold(14, {"pid": 200, "meters": meters(read_bytes=4096, main_read_bytes=None)})
    (rank,) = bench.ranks()
    # Of a burst the end counts; what another thread reads is nothing that its main thread got.
    assert rank.given == (EPOCH + 6.5, EPOCH + 12)
    assert rank.child_given == {}


def test_waits_of_a_rank_are_measured_by_the_scheduler() -> None:
    bench = Bench()
    bench.fold(0, process(100, 0))
    bench.sample(100, 0.5, ("all_reduce", 10))
    for second in (1, 2, 3):
        bench.fold(second, {"pid": 100, "meters": meters(main_last_ran_s=20.0 + second)})
    ran = {"main_waits": 2, "main_cpu_ns": 10**9 + 10**7}
    bench.fold(4, {"pid": 100, "meters": meters(main_last_ran_s=0.5, **ran)})
    (rank,) = bench.ranks()
    assert [(one.began, one.ended) for one in rank.waits] == [(EPOCH - 20, EPOCH + 3.5)]


@pytest.mark.parametrize(
    ("began", "seen", "ended", "counts"),
    [
        (0.0, 5.5, 6.0, True),
        # Too short; and where nobody looked meanwhile, many short ones may have passed.
        (0.0, 0.9, 1.0, False),
        (0.0, 0.1, 5.0, False),
    ],
)
def test_only_a_wait_that_was_seen_to_last_is_remembered(
    began: float, seen: float, ended: float, counts: bool
) -> None:
    recurring = Recurring()
    recurring.sampled(for_ranks=True)
    recurring.left(began, seen, ended)
    assert recurring.waits == ((Wait(began, ended, True),) if counts else ())


def test_a_few_of_the_last_waits_are_remembered_and_what_they_were_for() -> None:
    recurring = Recurring()
    recurring.left(0.0, 5.0, 6.0)
    assert recurring.waits == (), "nobody knows what for"
    for number in range(KEPT + 2):
        recurring.sampled(for_ranks=number % 2 == 0)
        recurring.left(10.0 * number, 10.0 * number + 5, 10.0 * number + 6)
    assert [one.began for one in recurring.waits] == [10.0 * n for n in range(2, KEPT + 2)]
    assert [one.for_ranks for one in recurring.waits][:2] == [True, False]
