"""Watchdogs of torch 1.13 to 2.1, which end processes by a C++ exception: for whom they waited."""

from __future__ import annotations

import pytest

from hangtop_core.logs.judging.conclude import conclude
from support.logs import judged
from support.verdicts import blamed

WAITED = (
    "[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=123, "
    "OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800116 milliseconds before timing out."
)
ENDS = "terminate called after throwing an instance of 'std::runtime_error'"
ABORTED = ("Fatal Python error: Aborted", "", "Thread 0x00007f (most recent call first):",
           '  File "/a/threading.py", line 306 in wait')  # fmt: skip
DOWN = "[E ProcessGroupNCCL.cpp:460] To avoid data inconsistency, we are taking the entire process "
DOWN += "down."


def gave_up(rank: int, label: str, *more: str) -> str:
    waited = WAITED.format(rank=rank)
    lines = [f"[E ProcessGroupNCCL.cpp:821] {waited}", DOWN, ENDS, f"  what():  {waited}", *more]
    return "".join(f"{label}{line}\n" for line in lines)


def interleaved(*texts: str) -> str:
    rows = [text.splitlines() for text in texts]
    return "".join(f"{line}\n" for some in zip(*rows, strict=True) for line in some)


LABELS = ["[n1:{}]:", "[default{}]:", "{}: ", ""]


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("more", [(), ABORTED])
def test_who_waited_is_not_blamed_for_ending_by_it(label: str, more: tuple[str, ...]) -> None:
    found = judged(interleaved(*(gave_up(rank, label.format(rank), *more) for rank in (0, 1, 3))))
    assert found.first is not None
    assert (found.first.record.part, found.first.ranks) == ("timeout", (0, 1, 3))
    one = conclude(found)[0]
    assert (one.cause, blamed(one), one.victims) == ("missing-collective", [2], (0, 1, 3))
    assert "There is no line of rank 2" in one.summary


def test_a_cpp_exception_that_nothing_explains_is_an_error_of_its_own() -> None:
    crashed = f"[n1:2]:{ENDS}\n[n1:2]:  what():  bad any_cast\n"
    found = judged(gave_up(0, "[n1:0]:") + gave_up(1, "[n1:1]:") + crashed)
    one = conclude(found)[0]
    assert (one.cause, blamed(one)) == ("rank-crashed", [2])
    # Nor is one of two that are told under no prefix.
    found = judged(gave_up(0, "") + f"{ENDS}\n")
    assert found.first is not None
    assert found.first.record.code == "T7"


def test_a_crash_of_a_rank_that_has_not_waited_is_one() -> None:
    crash = "".join(f"[n1:2]:{line}\n" for line in ABORTED)
    one = conclude(judged(gave_up(0, "[n1:0]:") + gave_up(1, "[n1:1]:") + crash))[0]
    assert (one.cause, blamed(one)) == ("rank-crashed", [2])


def nodes(*ranks: int, size: int = 2) -> str:
    """Those of several nodes that gave up, whose labels tell only a local rank."""
    return "".join(gave_up(r, f"[n{r // size}:{r % size}]:") for r in ranks)


@pytest.mark.parametrize("missing", [0, 1, 2, 3])
def test_on_two_nodes_the_gap_is_found(missing: int) -> None:
    found = judged(nodes(*({0, 1, 2, 3} - {missing})))
    assert blamed(conclude(found)[0]) == [missing]


def test_on_two_nodes_whoever_prints_and_did_not_wait_is_known_by_the_others() -> None:
    found = judged("[n1:1]:loss 0.5\n" + nodes(0, 1, 2))
    one = conclude(found)[0]
    assert blamed(one) == [3]
    assert any(e.text == "its last line: loss 0.5" for e in one.evidence)


def test_where_all_waited_nobody_is_missing() -> None:
    assert conclude(judged(nodes(0, 1, 2, 3)))[0].cause == "all-joined-transport"


def test_a_gap_in_another_group_than_that_of_all_is_none() -> None:
    """Ranks 0, 2 and 4 may be all of a group of tensor parallelism."""
    status = (
        "[rank{r}]:[E1206 18:44:12.7 ProcessGroupNCCL.cpp:1] [PG ID 2 PG GUID 5(tp) Rank {r}]  "
        "failure detected by watchdog at work sequence id: 7 PG status: last enqueued work: 7, "
        "last completed work: 6\n"
    )
    found = conclude(judged("".join(status.format(r=r) for r in (0, 2, 4))))
    assert not any(blamed(one) for one in found)
    whole = "".join(status.format(r=r) for r in (0, 1, 3)).replace(
        "2 PG GUID 5(tp)", "0 PG GUID 0(default_pg)"
    )
    assert blamed(conclude(judged(whole))[0]) == [2]


def test_ranks_of_a_group_do_not_tell_which_ranks_a_node_has() -> None:
    """Two groups of one node each, the ranks of which begin at 0."""
    text = "".join(gave_up(r, f"[n{n}:{r}]:") for n in (1, 2) for r in (0, 1))
    found = judged(text + "[n2:1]:loss 0.5\n")
    assert "loss 0.5" not in [text for text, _ in found.last.values()]
