"""Calls that differed as a number that is over: NCCL compares nothing, and what hangs comes later.

The recordings are of real jobs over NCCL, see tests/recordings/nccl.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hangtop_core.analysis.flight.earlier import LOOKED_BACK, OFTEN
from hangtop_core.dumps.find import rank_of
from hangtop_core.dumps.reader import decode
from support.flight import Job, blamed, judge

if TYPE_CHECKING:
    from hangtop_core.diagnosis import Verdict

RECORDED = Path(__file__).parents[4] / "recordings" / "nccl"


def differed(op: str = "all_gather", rank: int = 2, **other: object) -> Job:
    """Three rounds, of the third of which a rank's last call is another one, and is over."""
    job = Job(4)
    for _ in range(2):
        job.call("all_reduce", sizes=[[64]]).call("all_reduce", line=20)
    job.call("all_reduce", sizes=[[64]])
    job.call("all_reduce", [r for r in range(4) if r != rank], line=20)
    return job.call(op, [rank], **{"line": 21, **other})  # type: ignore[arg-type]


def over_on_some(job: Job) -> Verdict:
    """Another round, whose last call does not end on rank 0."""
    job.call("all_reduce", sizes=[[64]])
    job.call("all_reduce", [1, 2, 3], line=20).call("all_reduce", [0], line=20, done=False)
    (one,) = judge(job.dumps())
    return one


def test_what_differed_is_the_first_cause_and_not_where_it_hangs() -> None:
    one = over_on_some(differed())
    assert (one.cause, blamed(one), one.victims) == ("mismatched-collective", [2], (0, 1, 3))
    assert one.confidence == 0.85
    assert one.summary == (
        "rank 2 issued all_gather [[8]] Float as #6 on default_pg at user/train.py:21 (step), "
        "where ranks 0-1,3 issued all_reduce [[8]] Float at user/train.py:20 (step). It ended on "
        "all ranks: NCCL compares no calls, and results are wrong. What hangs now is "
        "all_reduce #8: over on ranks 1-3, and not on rank 0"
    )
    assert one.evidence[0].text.endswith("on default_pg; over on all of them")


def test_all_have_joined_what_hangs_now() -> None:
    job = differed().call("all_reduce", sizes=[[64]], done=False)
    (one,) = judge(job.dumps())
    assert (one.cause, blamed(one)) == ("mismatched-collective", [2])
    assert one.summary.endswith("What hangs now is all_reduce #7, which all have issued alike")


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"op": "all_reduce", "sizes": [[16]]}, "mismatched-size"),
        ({"op": "all_reduce", "dtype": "Int"}, "mismatched-dtype"),
        ({"op": "broadcast"}, "mismatched-collective"),
    ],
)
def test_sizes_and_types_count_too(change: dict[str, object], cause: str) -> None:
    one = over_on_some(differed(**change))  # type: ignore[arg-type]
    assert (one.cause, blamed(one)) == (cause, [2])
    assert "It ended on all ranks" in one.summary


@pytest.mark.parametrize(
    "op", ["all_gather", "reduce_scatter", "all_to_all", "scatter", "gather", "allreduce_coalesced"]
)
def test_sizes_of_what_each_has_its_own_part_of_may_differ(op: str) -> None:
    job = Job(4).call("all_reduce")
    job.call(op, [0, 1, 3], sizes=[[8]]).call(op, [2], sizes=[[24]]).call("barrier")
    assert over_on_some(job).cause == "all-joined-transport"


def test_another_shape_of_as_many_elements_is_alike() -> None:
    one = over_on_some(differed("all_reduce", sizes=[[2, 4]], line=20))
    assert one.cause == "all-joined-transport"


def test_sends_have_numbers_of_their_own() -> None:
    job = Job(4)
    for _ in range(3):
        job.call("all_reduce").call("send", [0], peer=1).call("recv", [1], peer=0)
    assert over_on_some(job).cause == "all-joined-transport"


def test_what_differs_in_another_group_has_not_hung_this_one() -> None:
    job = Job(4, {"1": ("tp", (2, 3))})
    job.call("all_reduce", [2], "1").call("all_gather", [3], "1").call("all_reduce")
    assert over_on_some(job).cause == "all-joined-transport"


def test_only_numbers_that_the_rings_of_both_hold_are_compared() -> None:
    job = differed().call("all_reduce", sizes=[[64]])
    job.call("all_reduce", [1, 2, 3]).call("all_reduce", [0], done=False)
    dumps = job.dumps() | {2: job.dump(2, last=2)}
    (one,) = judge(dumps)
    assert one.cause == "all-joined-transport"


def test_the_oldest_number_that_is_held_may_not_be_the_first() -> None:
    job = differed().call("all_reduce", sizes=[[64]])
    job.call("all_reduce", [1, 2, 3]).call("all_reduce", [0], done=False)
    (one,) = judge({rank: job.dump(rank, last=3) for rank in range(4)})
    assert (one.cause, blamed(one), one.confidence) == ("mismatched-collective", [2], 0.6)
    assert "the oldest number that was compared" in one.summary


def test_what_ranks_have_lived_with_is_less_sure() -> None:
    job = differed()
    for _ in range(OFTEN - 1):
        job.call("all_reduce").call("all_reduce", [0, 1, 3]).call("all_gather", [2])
    assert over_on_some(job).confidence == 0.6


def test_what_was_long_ago_has_not_hung_it() -> None:
    job = differed()
    for _ in range(LOOKED_BACK):
        job.call("all_reduce")
    assert over_on_some(job).cause == "all-joined-transport"


def test_two_halves_give_no_sure_majority() -> None:
    job = Job(2).call("all_reduce").call("all_reduce", [0]).call("all_gather", [1])
    job.call("barrier", done=False)
    (one,) = judge(job.dumps())
    assert (one.cause, one.confidence) == ("mismatched-collective", 0.45)


def test_a_step_left_out_silently_is_told_as_that() -> None:
    """NCCL paired its calls with the next ones of others, until what looks alike did not end."""
    job = Job(3)
    calls = (("all_reduce", 10), ("all_reduce", 11), ("all_gather", 12))
    for op, line in calls * 3:
        job.call(op, line=line)
    for (op, line), (other, after) in zip(calls, (*calls[1:], calls[0]), strict=True):
        job.call(op, [0, 2], line=line).call(other, [1], line=after)
    job.call("all_reduce", [0, 2], line=10, done=False)
    job.call("all_reduce", [1], line=11, done=False)
    (one,) = judge(job.dumps())
    assert (one.cause, blamed(one)) == ("missing-collective", [1])
    assert one.summary == (
        "rank 1 skipped all_reduce #10 at user/train.py:10 (step) on default_pg, first seen in "
        "#11. Its calls were paired with others since, and ended on all ranks: NCCL compares no "
        "calls, and results are wrong. What hangs now is all_reduce #13, which all have issued "
        "alike"
    )
    assert "from there on its calls are those of the others" in one.evidence[0].text


def test_a_call_too_many_is_told_as_that() -> None:
    job = Job(4)
    for _ in range(2):
        job.call("all_reduce", line=10).call("all_gather", line=11)
    job.call("broadcast", [3], line=99).call("all_reduce", [3], line=10)
    job.call("all_reduce", [0, 1, 2], line=10).call("all_gather", [0, 1, 2], line=11)
    job.call("all_gather", [3], line=11, done=False)
    job.call("all_gather", [0, 1, 2], line=10, done=False)
    (one,) = judge(job.dumps())
    assert (one.cause, blamed(one)) == ("rank-conditional-collective", [3])
    assert "rank 3 issued broadcast #5 at user/train.py:99 (step)" in one.summary


def test_a_rank_that_failed_by_what_another_sent_is_no_first_cause() -> None:
    """It has issued nothing since, with nothing in flight: first comes what it failed by."""
    job = differed().call("all_reduce", sizes=[[64]])
    job.call("all_reduce", [0, 1, 2], line=20, done=False)
    first, second = judge(job.dumps())
    assert (first.cause, blamed(first)) == ("mismatched-collective", [2])
    assert first.summary.endswith("What hangs now is all_reduce #8, which rank 3 has not issued")
    assert (second.cause, blamed(second), second.confidence) == ("missing-collective", [3], 0.5)


def test_a_rank_that_differed_and_stays_away_is_told_to_stay_away() -> None:
    job = differed().call("all_reduce", sizes=[[64]])
    job.call("all_reduce", [0, 1, 3], line=20, done=False)
    (one,) = judge(job.dumps())
    assert (one.cause, blamed(one), one.confidence) == ("missing-collective", [2], 0.9)
    assert any("#6 on default_pg is the first number that differs" in f.text for f in one.evidence)


def test_a_rank_without_a_dump_comes_after_what_others_show() -> None:
    job = differed().call("all_reduce", done=False)
    first, second = judge(job.dumps([0, 1, 2]))
    assert (first.cause, blamed(first)) == ("mismatched-collective", [2])
    assert first.summary.endswith("What hangs now is all_reduce #7; rank 3 left no dump")
    assert (blamed(second), second.confidence) == ([3], 0.5)


def test_where_ranks_differ_now_too_the_first_place_is_told() -> None:
    job = differed().call("all_reduce").call("all_reduce", [0, 1, 3], done=False)
    job.call("barrier", [2], done=False)
    (one,) = judge(job.dumps())
    assert one.summary.startswith("rank 2 issued all_gather [[8]] Float as #6 on default_pg")
    assert one.summary.endswith("What hangs now is all_reduce #8, which they have not issued alike")


def test_who_differs_now_is_not_who_differed_before() -> None:
    job = differed().call("all_reduce").call("all_reduce", [0, 2, 3], done=False)
    job.call("barrier", [1], done=False)
    (one,) = judge(job.dumps())
    assert blamed(one) == [1]
    assert "rank 1 is in another call than most as #8" in one.summary


def test_an_earlier_group_of_the_same_name_is_another_group() -> None:
    """Destroyed and made again: what rank 2 issued in the old one is in its ring, too."""
    job = Job(3).call("all_reduce").call("barrier").call("barrier")
    old = {rank: list(entries) for rank, entries in job.entries.items()}
    job = Job(3).call("barrier").call("all_reduce").call("all_reduce", done=False)
    dumps = job.dumps()
    dumps[2]["entries"] = old[2] + dumps[2]["entries"]
    (one,) = judge(dumps)
    assert one.cause == "all-joined-transport"


def recorded(name: str) -> list[Verdict]:
    """The verdicts on what a real job has left."""
    files = sorted((RECORDED / name).glob("rank_*"))
    return judge({rank_of(file.name): decode(file.read_bytes()) for file in files})  # type: ignore[misc]


def test_a_real_job_whose_ranks_gathered_and_reduced() -> None:
    (one,) = recorded("verb")
    assert (one.cause, blamed(one), one.victims) == ("mismatched-collective", [2], (0, 1, 3))
    assert one.summary.startswith(
        "rank 2 issued all_gather [[4194304]] Float as #41 on default_pg at ada/train.py:136 "
        "(verb), where ranks 0-1,3 issued all_reduce [[4194304]] Float at ada/train.py:138 (verb)"
    )
    assert one.summary.endswith(
        "What hangs now is all_reduce #49: over on ranks 0-1,3, and not on rank 2"
    )


@pytest.mark.parametrize(
    ("name", "cause", "confidence"),
    [
        ("sizes", "mismatched-size", 0.9),
        ("leave", "missing-collective", 0.6),
        ("timeout", "missing-collective", 0.9),
    ],
)
def test_other_real_jobs(name: str, cause: str, confidence: float) -> None:
    (one,) = recorded(name)
    assert (one.cause, blamed(one), one.confidence) == (cause, [2], confidence)
