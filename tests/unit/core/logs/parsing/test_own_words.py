"""Whose a line is that names its rank in the program's own words, in a file of several ranks."""

from __future__ import annotations

import msgspec
import pytest

from hangtop_core.logs.judging.judge import judge
from hangtop_core.logs.parsing.own_words import in_own_words
from hangtop_core.logs.parsing.parse import Parser
from hangtop_core.logs.reading.of_jobs import of_job
from hangtop_core.model.file_log import Place
from hangtop_core.model.output import Output
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


SHAPES = [
    "[04:26:29] rank {} step {}",
    "2026-11-23 04:18:45,186 rank {} step {} loss 1.2",
    "2026-11-23 04:18:45,186 INFO train.py:40 [Rank {}] step {}",
    "rank{}: step {}",
    "(RANK={}) step {}",
    '{{"time": "04:18:45", "rank": {}, "step": {}}}',
    "I1123 04:18:45 global_rank={} step={}",
]


def told(text: str) -> list[int | None]:
    """The ranks of the lines of a text, as far as they are told."""
    found: list[int | None] = []
    parser = Parser(0, 0.0, lambda line: found.append(line.origin.said))
    parser.feed(text)
    parser.finish()
    return found


@pytest.mark.parametrize("shape", SHAPES)
def test_a_rank_that_nearly_all_lines_name_has_printed_them(shape: str) -> None:
    lines = [shape.format(step % 3, step) for step in range(30)]
    frames = ['  File "a.py", line 3, in f', "    x()"] * 20
    lines[10:10] = ["Traceback (most recent call last):", *frames, "KeyError: 1"]
    assert told("\n".join(lines)) == [n % 3 for n in range(10)] + [None] * 42 + [
        n % 3 for n in range(10, 30)
    ]


@pytest.mark.parametrize(
    "lines",
    [
        # one rank alone: of what it prints about itself, or about the first
        [f"10:00:0{n} rank 0: {n}" for n in range(9)],
        # the rank on its node is no global one
        [f"10:00:0{n} local_rank {n % 2}: {n}" for n in range(9)],
        # too few of its lines
        [f"step {n}" for n in range(9)] + ["rank 1: bad", "rank 2: bad", "rank 3: bad"],
        # every line in other words is prose
        [
            "rank 1 joined", "waiting for rank 2", "no answer from rank 3", "all but rank 1: done",
            "the slowest is: rank 2", "(best) rank 3",
        ],
    ],
)  # fmt: skip
def test_other_lines_tell_of_a_rank(lines: list[str]) -> None:
    assert set(told("\n".join(lines))) == {None}


def test_a_line_about_another_rank_in_other_words_is_nobodys() -> None:
    lines = [f"10:00:0{n} rank {n % 3}: step {n}" for n in range(9)]
    assert told("\n".join([*lines, "waiting for the answer of rank 2"]))[-1] is None


def test_the_last_line_of_every_rank_is_known_where_several_print_to_one_file() -> None:
    text = "".join(f"10:00:0{n} rank {n % 3}: step {n}\n" for n in range(9))
    assert {rank: last for rank, (last, _) in judge([parsed(text)]).last.items()} == {
        rank: f"10:00:0{6 + rank} rank {rank}: step {6 + rank}" for rank in range(3)
    }


def test_a_file_of_one_rank_is_that_ranks_whatever_it_prints() -> None:
    text = "".join(f"10:00:0{n} rank {n % 3}: throughput {n}\n" for n in range(9))
    file = parsed(text)
    own = msgspec.structs.replace(file, place=Place(rank=0))
    assert set(judge([own]).last) == {0}


def test_a_traceback_is_still_of_the_rank_that_the_line_before_it_names() -> None:
    lines = [f"10:00:0{n} rank {n % 3}: step {n}" for n in range(9)]
    lines += ["10:00:10 rank 1: failed", "Traceback (most recent call last):"]
    lines += ['  File "a.py", line 3, in f', "    x()", "KeyError: 1"]
    (record,) = (r for r in parsed("\n".join(lines) + "\n").records if r.code == "traceback")
    assert record.fields["named"] == "1"
