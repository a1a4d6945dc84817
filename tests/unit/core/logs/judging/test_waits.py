"""Ranks that only timed out: who did not come, and what cannot be told."""

from __future__ import annotations

import pytest

from hangtop_core.logs.judging.conclude import conclude
from support.logs import judged
from support.verdicts import blamed


def watchdog(rank: int, seq: int = 123, op: str = "ALLREDUCE", numel: int = 16) -> str:
    """What torch 2.1 to 2.3 print."""
    return (
        f"[rank{rank}]:[E1121 11:00:00.{rank} ProcessGroupNCCL.cpp:523] [Rank {rank}] Watchdog "
        f"caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={numel},"
        f" NumelOut={numel}, Timeout(ms)=600000) ran for 60003{rank} milliseconds before timing "
        "out.\n"
    )


def gloo(rank: int, line: int) -> str:
    """What a rank prints that gave up waiting in gloo."""
    at = f"[rank{rank}]: "
    return (
        f"{at}Traceback (most recent call last):\n"
        f'{at}  File "/job/train.py", line {line}, in step\n'
        f"{at}    dist.all_reduce(x)\n"
        f"{at}RuntimeError: [unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation "
        "to complete\n"
    )


def stuck(rank: int) -> str:
    return (
        f"[rank{rank}]:[E608 14:09:10.2 ProcessGroupNCCL.cpp:1484] [PG ID 0 PG GUID 0(default_pg) "
        f"Rank {rank}] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making "
        "progress in monitoring enqueued collectives.\n"
    )


FOUR = range(4)
TOLD = [
    # Each has completed what the one before it waits for.
    ("".join(watchdog(rank, 120 + rank) for rank in FOUR), "missing-collective", [0]),
    ("".join(watchdog(rank, 123 - (rank == 2)) for rank in FOUR), "missing-collective", [2]),
    ("".join(watchdog(r, numel=8 if r == 3 else 16) for r in FOUR), "mismatched-size", [3]),
    # Groups of some ranks each, of which such a watchdog does not tell the name.
    ("".join(watchdog(r, numel=8 + r // 2) for r in FOUR), "all-joined-transport", []),
    # Each rank may gather another number of elements.
    (
        "".join(watchdog(r, op="ALLGATHER", numel=8 + r // 3) for r in FOUR),
        "all-joined-transport",
        [],
    ),
    ("".join(gloo(rank, 15 if rank == 0 else 9) for rank in FOUR), "missing-collective", [0]),
]


@pytest.mark.parametrize(("text", "cause", "ranks"), TOLD)
def test_who_did_not_come_where_all_have_waited(text: str, cause: str, ranks: list[int]) -> None:
    first = conclude(judged(text))[0]
    assert (first.cause, blamed(first)) == (cause, ranks)


def test_that_all_have_begun_as_much_is_only_said_where_they_have() -> None:
    for text, *_ in TOLD[:2]:
        facts = [fact.text for fact in conclude(judged(text))[0].evidence]
        assert not any("none is behind" in fact for fact in facts)


UNTOLD = [
    (watchdog(2), "there is no line of another rank", "Give the logs of all ranks and nodes"),
    # Pairs count their messages for themselves.
    (watchdog(0, 10, "SEND") + watchdog(1, 11, "RECV"), "for whom, these logs", "hangtop diagnose"),
    (
        watchdog(0, 10, "SEND") + watchdog(1, 10, "RECV"),
        "for whom, these logs",
        "monitored_barrier",
    ),
    ("".join(gloo(rank, 9) for rank in FOUR), "for whom, these logs do not tell", "hangtop run --"),
    ("".join(gloo(rank, 9 + rank // 2) for rank in FOUR), "for whom", "hangtop run --"),
    ("".join(map(stuck, FOUR)), "holds it; which, these logs do not tell", "dump --all-threads"),
]


@pytest.mark.parametrize(("text", "said", "step"), UNTOLD)
def test_what_cannot_be_told_is_said_with_the_next_step(text: str, said: str, step: str) -> None:
    (one,) = conclude(judged(text))
    assert (one.cause, blamed(one), one.confidence) == ("unknown", [], 0.3)
    assert said in one.summary
    assert any(step in known for known in one.next_steps)
