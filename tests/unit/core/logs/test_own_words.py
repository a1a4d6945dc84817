"""Whose a line is that names its rank in the program's own words, in a file of several ranks."""

from __future__ import annotations

import pytest

from hangtop_core.logs.output import Output, of_job
from hangtop_core.logs.whose import in_own_words
from support.build import HUNG_SINCE, World
from support.logs import parsed
from support.verdicts import printing

FULL = "OSError: [Errno 28] No space left on device: '/scratch/ckpt.pt'"


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        ("[rank 3] x", 3),
        ("[Rank 3] x", 3),
        ("[rank=3] x", 3),
        ("[RANK:3] x", 3),
        ("[rank3] x", 3),
        ("(rank 3/8) x", 3),
        ("2026-11-22 10:00:01,123 ERROR [rank 3] x", 3),
        ("[2026-11-22 10:00:01] [INFO] [Rank 3] x", 3),
        ("2026-11-22T10:00:01.5Z | WARNING | [rank 3] x", 3),
        ("10:00:01 - ERROR - [rank 3] x", 3),
        ("ERROR:root.sub:[rank 3] x", 3),
        # Of another rank, or it may be
        ("rank 3 timed out", None),
        ("waiting for [rank 3]", None),
        ("ERROR no answer of [rank 3]", None),
        ("rank 3: no answer", None),
        ("rank=3 exitcode=1", None),
        ("[ranks 3] x", None),
        ("[rank 3-5] x", None),
        ("[rank 3, rank 4] x", None),
        # A rank of its group
        ("[Rank 3]: Ranks 1 failed to pass monitoredBarrier in 30000 ms", None),
        ("[E1122 10:00:00.123 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught", None),
        ("[E ProcessGroupNCCL.cpp:828] [Rank 3] Watchdog caught", None),
    ],
)
def test_only_a_prefix_in_brackets_at_the_beginning_counts(line: str, rank: int | None) -> None:
    assert in_own_words(line) == rank


def whose(text: str, *nodes: str, launched: bool = False) -> list[tuple[int | None, int]]:
    """The ranks of the records of a file to which the ranks of these nodes print, and counts."""
    world = World()
    for node in nodes:
        world.waiters(1, node=node)
    pids = tuple(rank.process.pid for rank in world.ranks)
    output = Output("n1", "1:1", "/job/log.txt", pids=pids, log=parsed(text))
    (log,) = of_job((output,), world.snapshot().jobs[0])
    return [
        (log.place.rank if r.origin.rank is None else r.origin.rank, r.count) for r in log.records
    ]


def test_lines_of_a_file_of_several_ranks_are_theirs_who_say_so() -> None:
    text = f"[rank 1] {FULL}\n[rank 2] {FULL}\n[rank 2] {FULL}\n"
    assert whose(text, "n1", "n1", "n1") == [(1, 1), (2, 2)]


@pytest.mark.parametrize(
    ("line", "nodes", "rank"),
    [
        (f"[rank 7] {FULL}", ("n1", "n1"), None),  # no rank of the job
        (f"[rank 1] {FULL}", ("n1", "n2"), 0),  # of another node: its file is rank 0's alone
        (f"[rank 0] {FULL}", ("n1",), 0),
        (f"rank 1: {FULL}", ("n1", "n1"), None),
        (f"saving on rank 1 failed: {FULL}", ("n1", "n1"), None),
        (f"[rank0]: {FULL}", ("n1", "n1"), 0),  # torch's own prefix
        (f"[rank0]: [rank 1] {FULL}", ("n1", "n1"), 0),  # rank 0 tells of another one
    ],
)
def test_others_are_left_to_whom_they_were(
    line: str, nodes: tuple[str, ...], rank: int | None
) -> None:
    assert whose(f"{line}\n", *nodes) == [(rank, 1)]


def test_what_is_of_a_group_stays_so() -> None:
    text = (
        "[E ProcessGroupNCCL.cpp:828] [Rank 1] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=5, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600029 milliseconds "
        "before timing out.\n"
    )
    assert whose(text, "n1", "n1") == [(None, 1)]


ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


@pytest.mark.parametrize(
    ("line", "blamed"),
    [
        (f"[rank 3] {ECC}", [3]),
        (f"ERROR [Rank 3] {ECC}", [3]),
        (f"ERROR no answer of [rank 3]: {ECC}", []),
        (f"ERROR rank 3: {ECC}", []),
        (f"[rank 9] {ECC}", []),
    ],
)
def test_whom_a_line_is_of_is_told_by_the_verdict(line: str, blamed: list[int]) -> None:
    # GIVEN ranks that print to one file, of which one has left
    world = World()
    world.waiters(3)
    world.add(None, None, state="exited", process={"gone_at": HUNG_SINCE, "exit_code": 1})
    # WHEN a line tells why, THEN it is that of who has written its number before it
    found = printing(world, "[rank 0] step 7", line)
    (verdict,) = [one for one in found.verdicts if one.cause == "gpu-ecc"]
    assert [one.rank for one in verdict.culprits if one.rank is not None] == blamed
