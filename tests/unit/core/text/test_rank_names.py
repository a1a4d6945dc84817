"""Ranks whose number nothing tells: what stands for it, how they are named, and how they are typed.

And how programs that are no ranks are named.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangtop_core.diagnosis import Culprit, to_json
from hangtop_core.text.rank_sets import (
    contains,
    fold,
    is_key,
    is_program,
    names,
    parse,
    pid_of,
    rank_key,
    rank_label,
    rank_name,
)

FIRST, SECOND = rank_key("gpu03", 4711), rank_key("gpu03", 4712)
AFAR = rank_key("gpu04", 4711)
WEB = rank_key("gpu03", 900, is_program=True)
PIDS = st.integers(1, (1 << 22) - 1)


@given(st.text(max_size=20), PIDS, PIDS, st.booleans())
def test_a_key_is_below_any_number_holds_its_pid_and_sorts_by_it(
    node: str, pid: int, other: int, program: bool
) -> None:
    key = rank_key(node, pid, is_program=program)
    assert is_key(key)
    assert not is_key(0)
    assert is_program(key) == program
    assert pid_of(key) == pid
    assert (key < rank_key(node, other, is_program=program)) == (pid < other)
    assert key > -(1 << 53)  # as any reader of JSON holds it


def test_one_pid_on_two_nodes_is_two_ranks() -> None:
    assert FIRST != AFAR
    assert contains(parse("pid4711"), AFAR)
    assert contains(parse("pid4711"), FIRST)
    assert not contains(parse("pid4712,0-9"), FIRST)
    assert contains(parse("pid900"), rank_key("gpu03", 900))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (rank_name(2), "rank 2"),
        (rank_name(2, node="gpu03", pid=3430), "rank 2 (gpu03, pid 3430)"),
        (rank_name(FIRST), "rank ? (pid 4711)"),
        (rank_name(FIRST, "VLLM::Worker_TP1"), "rank ? (pid 4711, VLLM::Worker_TP1)"),
        (rank_name(FIRST, "GPU 3", node="gpu03", pid=4711), "rank ? (gpu03, pid 4711, GPU 3)"),
        (rank_name(WEB, "web.py"), "process 900 (web.py)"),
        (names([FIRST]), "rank ? (pid 4711)"),
        (names([SECOND, FIRST]), "ranks ? (pids 4711-4712)"),
        (names([3, 0, FIRST, 1]), "ranks 0-1,3,? (pid 4711)"),
        (names([WEB, rank_key("gpu03", 77, is_program=True)]), "processes 77,900"),
        (names([FIRST, 2, WEB]), "ranks 2,? (pid 4711) and process 900"),
        (names([]), "ranks "),
        (fold([SECOND, 5, FIRST, 4]), "4-5,pid4711-4712"),
        (fold([FIRST, AFAR]), "pid4711"),
        (rank_label(FIRST), "pid4711"),
        (rank_label(7), "7"),
    ],
)
def test_names(name: str, text: str) -> None:
    assert name == text


@given(st.frozensets(PIDS, max_size=30), st.frozensets(st.integers(0, 900), max_size=30))
def test_what_is_folded_names_the_same_ranks(pids: frozenset[int], numbers: frozenset[int]) -> None:
    ranks = {rank_key("gpu03", pid) for pid in pids} | numbers
    wanted = parse(fold(ranks))
    assert all(contains(wanted, rank) for rank in ranks)
    assert not contains(wanted, 901)


def test_json_has_null_for_a_rank_without_a_number_and_pids_beside_a_list() -> None:
    culprit = Culprit(FIRST, "gpu03", 4711, about="VLLM::Worker_TP1")
    data = json.loads(to_json({"culprits": (culprit, Culprit(1, "a", 5)), "victims": [0, SECOND]}))
    assert [one["rank"] for one in data["culprits"]] == [None, 1]
    assert data["culprits"][0]["about"] == "VLLM::Worker_TP1"
    assert (data["victims"], data["victims_pids"]) == ([0], [4712])
    assert "culprits_pids" not in data
