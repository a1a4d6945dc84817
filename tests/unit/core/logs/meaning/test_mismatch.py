"""Watchdogs that gave up waiting in different operations under one number."""

from __future__ import annotations

import pytest

from hangtop_core.logs.judging.conclude import conclude
from support.logs import judged
from support.verdicts import blamed


def old(rank: int, op: str, seq: int = 123) -> str:
    """What torch 1.13 and 2.0 print, which names no group."""
    return (
        f"[E ProcessGroupNCCL.cpp:821] [Rank {rank}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum={seq}, OpType={op}, Timeout(ms)=1800000) ran for 1800116 milliseconds "
        "before timing out.\n"
    )


def new(rank: int, op: str, group: str = "TP", seq: int = 40) -> str:
    """What torch 2.5 prints."""
    prefix = f"[rank{rank}]:[E1206 18:44:01.7 ProcessGroupNCCL.cpp:1] "
    return (
        f"{prefix}[PG ID 1 PG GUID 1({group}) Rank {rank}] Watchdog caught collective operation "
        f"timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn=10, Timeout(ms)=600000) "
        "ran for 600061 milliseconds before timing out.\n"
        f"{prefix}[PG ID 1 PG GUID 1({group}) Rank {rank}]  failure detected by watchdog at work "
        f"sequence id: {seq} PG status: last enqueued work: {seq}, last completed work: {seq - 1}\n"
    )


@pytest.mark.parametrize(("line", "sure"), [(old, 0.5), (new, 0.75)])
def test_the_fewest_are_to_blame(line, sure: float) -> None:  # type: ignore[no-untyped-def]
    text = "".join(line(rank, "ALLREDUCE") for rank in (0, 1, 3)) + line(2, "ALLGATHER")
    (one,) = conclude(judged(text))
    assert (one.cause, blamed(one), one.confidence) == ("mismatched-collective", [2], sure)
    assert "ranks 0-1,3 in ALLREDUCE #" in one.summary
    assert ("does not name" in one.summary) == (line is old)


def test_of_two_halves_nobody_is_to_blame() -> None:
    text = "".join(old(rank, ("ALLREDUCE", "BROADCAST")[rank // 2]) for rank in range(4))
    (one,) = conclude(judged(text))
    assert (one.cause, blamed(one)) == ("mismatched-collective", [])


def test_operations_of_other_groups_or_numbers_are_no_mismatch() -> None:
    groups = "".join(new(rank, "ALLREDUCE", "TP") for rank in (0, 1, 3)) + new(2, "ALLGATHER", "DP")
    assert conclude(judged(groups))[0].cause != "mismatched-collective"
    alike = "".join(old(rank, "ALLREDUCE") for rank in range(4))
    assert conclude(judged(alike))[0].cause == "all-joined-transport"
