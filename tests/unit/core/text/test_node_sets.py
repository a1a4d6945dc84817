"""Names of nodes are folded into a set expression and unfolded again, within bounds."""

from __future__ import annotations

import tracemalloc
from functools import partial
from typing import TYPE_CHECKING

import pytest
from ClusterShell.NodeSet import NodeSet
from hypothesis import given, settings
from hypothesis import strategies as st

from hangtop_core.text import node_sets
from hangtop_core.text.node_sets import MAX_MERGED, MAX_NAMES, combined, fold, is_bounded, unfold
from support.growth import MOST, growth

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["gpu7"], "gpu7"),
        (["node-1", "node-2", "node-10"], "node-[1-2,10]"),
        (["gpu01", "gpu02", "gpu10", "head"], "gpu[01-02,10],head"),
        (["n1-ib", "n2-ib", "n3"], "n3,n[1-2]-ib"),
        (["a", "b"], "a,b"),
        (["@all", "n1"], "@all,n1"),
        (["x\x1b[31m1"], "x1"),
    ],
)
def test_names_are_folded(names: list[str], text: str) -> None:
    assert fold(names) == text


@given(st.sets(st.from_regex(r"(gpu|n-)(0?[0-9]{1,3})(-ib)?", fullmatch=True), max_size=12))
def test_clustershell_reads_what_was_folded(names: set[str]) -> None:
    assert {str(name) for name in NodeSet(fold(names))} == names


@settings(max_examples=40)
@given(st.from_regex(r"([abc][1-3]?(\[[1-9]-9\])?[,!&^]){0,6}r[12]n\[2-3\]", fullmatch=True))
def test_operators_work_as_in_clustershell(expression: str) -> None:
    assert combined(expression, NodeSet, MAX_NAMES) == [str(name) for name in NodeSet(expression)]


def addresses(count: int) -> list[str]:
    """Names with four numbers, of which no two have three in common."""
    return [f"ip-10-{n % 7}-{n * 7 % 251}-{n * 11 % 241}" for n in range(count)]


def test_many_names_with_several_numbers_are_folded_and_read() -> None:
    names = addresses(4 * MAX_MERGED)
    assert sorted(unfold(fold(names))) == sorted(names)
    racks = [f"r{n // 32}n{n % 32:02}-ib" for n in range(64 * 32)]
    assert fold(racks) == "r[0-63]n[00-31]-ib"
    odd = [*names, "a@b1-2"]  # no names of nodes
    assert fold(odd) == ",".join(sorted(odd))


@pytest.mark.parametrize(
    "work",
    [
        lambda names: node_sets._fold.__wrapped__(tuple(names)),  # without what it remembers
        lambda names: unfold(",".join(names)),
        lambda names: unfold(f"{','.join(names)}!{'!'.join(names)}"),
        lambda names: is_bounded(f"n[{','.join('1' for _ in names)}]", MAX_NAMES),
    ],
    ids=["fold", "unfold", "operators", "numbers"],
)
def test_cost_is_linear_in_names(
    work: Callable[[list[str]], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ClusterShell compares each name with each, where they have several numbers."""
    monkeypatch.setattr(node_sets, "MAX_MERGED", 8)
    assert growth(lambda count: partial(work, addresses(count)), 40) < MOST


@pytest.mark.parametrize("text", ["n[" + "1," * MAX_NAMES + "2]", "a[1-99]b[1-99]c[1-9]"])
def test_each_number_counts_and_those_of_one_name_multiply(text: str) -> None:
    assert not is_bounded(text, MAX_NAMES)


def test_more_names_than_there_are_nodes_are_not_even_listed() -> None:
    assert unfold("gpu[01-03]") == ["gpu01", "gpu02", "gpu03"]
    assert unfold("gpu1[9-10]") == ["gpu19", "gpu110"]
    tracemalloc.start()
    try:
        assert unfold("gpu[0-3000000]") == []
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("text", ["a[1-300000,300000-1]", "a[1-1999999999,1999999999-1]", "a[2-1]"])
def test_a_range_that_goes_down_makes_no_room_for_others(text: str) -> None:
    assert not is_bounded(text, MAX_NAMES)
    assert unfold(text) == []


@pytest.mark.parametrize("name", ["a[0-300000]", "a[1-1999999999]"])
def test_a_name_with_a_range_is_not_unfolded_to_be_folded(name: str) -> None:
    tracemalloc.start()
    try:
        assert fold([name, "n1"]) == f"{name},n1"
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@given(
    st.sampled_from(["gpu", "n1", "r2n10", "9"]),
    st.integers(0, 30),
    st.integers(0, 120),
    st.sampled_from([None, 1, 3]),
    st.sampled_from(["", "-ib"]),
)
def test_digits_before_a_range_stand_before_each_of_its_numbers(
    before: str, first: int, more: int, step: int | None, after: str
) -> None:
    """As Slurm and pdsh read it."""
    every = range(first, first + more + 1, step or 1)
    text = f"{before}[{first}-{first + more}{f'/{step}' if step else ''}]{after}"
    assert set(unfold(text)) == {f"{before}{number}{after}" for number in every}
