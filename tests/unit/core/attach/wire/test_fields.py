"""Processes and nodes as pieces of a node tell them."""

from __future__ import annotations

from typing import Any

import pytest

from hangtop_core.attach.wire.fields import read_changes, read_whole
from hangtop_core.model.meters import Meters
from hangtop_core.model.snapshot import Process
from simulated.node import RECORDED

STRINGS = {int(key): text for key, text in RECORDED["piece"]["strings"].items()}
ROW: dict[str, Any] = next(iter(RECORDED["piece"]["set"].values()))
SKEW = 2.5


def in_parts(row: dict[str, Any]) -> Process:
    """What is read field by field."""
    changes, wrong = read_changes(row, STRINGS)
    assert not wrong
    changes["started_at"] -= SKEW
    return Process(node="n1", **{**changes, "meters": Meters(**changes["meters"])})


@pytest.mark.parametrize("row", RECORDED["piece"]["set"].values())
def test_a_process_that_is_told_at_once_is_what_its_fields_say(row: dict[str, Any]) -> None:
    assert read_whole(row, STRINGS, "n1", SKEW) == in_parts(row)
    denied = {**row, "denied": ["it belongs to root", "sudo"], "of a newer probe": 1}
    assert read_whole(denied, STRINGS, "n1", SKEW) == in_parts(denied)
    least = {key: row[key] for key in Process.__struct_fields__[:7]} | {"meters": {}}
    assert read_whole(least, STRINGS, "n1", SKEW) == in_parts(least)


@pytest.mark.parametrize(
    "row",
    [
        None,
        [],
        {},
        {**ROW, "rank": "first"},
        {**ROW, "meters": {"cpu_s": None}},
        {**ROW, "threads": [[1, "a", 99999, None, None, None, None]]},
        {key: value for key, value in ROW.items() if key != "start"},
    ],
)
def test_of_one_that_is_not_all_good_nothing_is_read_at_once(row: object) -> None:
    assert read_whole(row, STRINGS, "n1", SKEW) is None
