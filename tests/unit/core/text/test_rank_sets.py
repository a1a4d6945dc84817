"""Sets of ranks as text, folded and read back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangtop_core.text.rank_sets import fold, parse

RANKS = st.frozensets(st.integers(0, 9000), max_size=200)


@given(RANKS)
def test_what_is_folded_is_read_back(ranks: frozenset[int]) -> None:
    assert parse(fold(ranks)) == ranks


@given(st.lists(st.integers(0, 60), max_size=60))
def test_the_folded_form_depends_on_the_set_only(ranks: list[int]) -> None:
    assert fold(ranks) == fold(reversed(ranks)) == fold(set(ranks)) == fold(ranks * 2)


@given(RANKS)
def test_pieces_ascend_and_never_touch(ranks: frozenset[int]) -> None:
    text = fold(ranks)
    ends = [(int(p.split("-")[0]), int(p.split("-")[-1])) for p in text.split(",") if p]
    assert all(first <= last for first, last in ends)
    assert all(ends[i][1] + 1 < ends[i + 1][0] for i in range(len(ends) - 1))


@given(st.text(alphabet="0123-, x", max_size=9))
def test_any_text_is_a_set_or_a_positioned_error(text: str) -> None:
    try:
        ranks = parse(text)
    except ValueError as error:
        message = str(error)
        assert f"of {text!r}" in message  # both ways are right
        assert "at position" in message
    else:
        assert parse(fold(ranks)) == ranks


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([], ""), ([7], "7"), ([0, 1], "0-1"), ([4, 0, 2, 1], "0-2,4"), ([1, 3, 5], "1,3,5")],
)
def test_known_forms(ranks: list[int], text: str) -> None:
    assert fold(ranks) == text


@pytest.mark.parametrize(
    ("text", "position"),
    [("1,,2", 3), ("1,", 3), ("a", 1), ("3-1", 3), ("1 2", 3), ("-1", 1), ("1-9999999", 9)],
)
def test_errors_say_where(text: str, position: int) -> None:
    with pytest.raises(ValueError, match=f"position {position} of"):
        parse(text)
