"""Columns from nodes are taken only where all they point to is there."""

from __future__ import annotations

import zlib
from array import array
from base64 import b64encode
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangtop_core.model.recorder import columns
from hangtop_core.model.recorder.columns import GroupRow, Parts, Shared, TraceRow, Unpacker

CALL = ("nccl:all_reduce", "[[4]]", "[[4]]", "Float", "Float")


def unpack(
    calls: int, index: list[int], numbers: list[int], group: int = 0, site: int = 0
) -> list[int]:
    """The calls of a trace's entries, after its way over the wire."""
    length = len(index)
    data = b"".join(
        (
            array("H", [group] * length).tobytes(),
            array("I", index).tobytes(),
            array("I", [site] * length).tobytes(),
            bytes(length),
            *(array("q", numbers).tobytes() for _ in range(3)),
        )
    )
    unpacker = Unpacker(Shared())
    names = [str(n) for n in range(calls)]
    groups = {"0": GroupRow("0", "default_pg")}
    unpacker.learn(Parts(calls=dict.fromkeys(names, CALL), groups=groups))
    row = TraceRow(
        groups=("0",),
        calls=tuple(names),
        length=length,
        columns=b64encode(zlib.compress(data)).decode(),
    )
    return list(unpacker.trace(row, 0, "", 0.0).call)


def test_what_was_sent_is_found_and_what_was_not_is_refused() -> None:
    assert unpack(2, [0, 1, 1], [1, 2, 3]) == [0, 1, 1]
    for odd in ({"index": [0, 2, 1]}, {"group": 1}, {"site": 1}):
        told = {"index": [0, 1, 1], **odd}
        with pytest.raises(ValueError, match="not there"):
            unpack(2, numbers=[1, 2, 3], **told)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="far out of range"):
        unpack(2, [0, 1, 1], [1, 2, 2**62])


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.sampled_from([2**62, -(2**62)]), max_size=4))
def test_numbers_are_near_enough_to_count_with(numbers: list[int]) -> None:
    data = array("q", numbers).tobytes()
    near = not data[7::8].translate(None, columns._NEAR)
    assert near == all(-(2**62) <= number < 2**62 for number in numbers)


@given(
    st.sampled_from(["H", "I"]),
    st.lists(st.integers(0, 70) | st.integers(0, 65535), max_size=8),
    st.integers(0, 400),
)
def test_a_column_is_below_a_count_as_by_looking_at_all(
    kind: Literal["H", "I"], column: list[int], count: int
) -> None:
    assert columns._below(array(kind, column).tobytes(), kind, count) == all(
        number < count for number in column
    )
