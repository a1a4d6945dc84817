"""The filter language."""

from __future__ import annotations

import pytest

from hangtop.keys import palette, query
from hangtop_core.text.rank_sets import rank_key

FIELDS = frozenset({"state", "node", "idle"})
ROW: query.Fields = {"state": "stopped", "node": "gpu07", "idle": 61.0}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", True),
        ("3", True),
        ("1-4", True),
        ("1-2", False),
        ("4,3", True),
        ("state=stopped", True),
        ("STATE=Stopped", True),
        ("state=stop", False),
        ("state!=stopped", False),
        ("node~07", True),
        ("idle>60", True),
        ("idle>60s", True),
        ("idle<60", False),
        ("all_red", True),
        ("!all_red", False),
        ("state=stopped node~gpu 3", True),
        ("state=stopped node~cpu 3", False),
    ],
)
def test_words(text: str, shown: bool) -> None:
    match = query.parse(text, FIELDS)
    assert match(ROW, frozenset({3}), "rank 3 in all_reduce") is shown


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("colour=red", "no field 'colour'"),
        ("idle>soon", "needs a number"),
        ("7-3", "backwards"),
    ],
)
def test_what_is_wrong_is_said(text: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        query.parse(text, FIELDS)


def test_an_unknown_number_is_neither_larger_nor_smaller() -> None:
    for text in ("idle>0", "idle<1000000"):
        assert not query.parse(text, FIELDS)({"idle": None}, frozenset(), "")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("pid=4711", True),
        ("pid!=4711", False),
        ("pid=471", False),
        ("pid~71", True),
        ("pid~0", False),
        ("rank=0", True),
        ("rank!=0", False),
        ("rank=", False),
        ("idle=61.5", True),
        ("seq=48121000", True),
        ("gpu=", True),
        ("gpu=0", False),
    ],
)
def test_a_number_is_compared_as_it_is_typed(text: str, shown: bool) -> None:
    row: query.Fields = {"pid": 4711.0, "rank": 0.0, "idle": 61.5, "seq": 48121000.0, "gpu": None}
    assert query.parse(text, frozenset(row))(row, frozenset(), "") is shown


def test_a_filter_and_the_palette_take_the_pid_of_a_rank_without_a_number() -> None:
    nameless, other = rank_key("gpu03", 4711), rank_key("gpu03", 4712)
    match = query.parse("pid4711", frozenset())
    assert match({}, frozenset({nameless}), "")
    assert not match({}, frozenset({other, 4711}), "")
    for text in ("rank pid4711", "pid4711"):
        assert palette.parse(text, ()) == palette.Command("rank", "4711")
