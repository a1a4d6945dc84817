"""The head's faster JSON understands what Python's does, and refuses what that refuses."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hangtop_core.attach.wire.reader import Reader
from hangtop_probe.wire import wire

ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=20,
)


@settings(max_examples=25)
@given(st.dictionaries(st.text(max_size=8), ANY))
def test_a_message_means_the_same_to_both(message: dict[str, object]) -> None:
    data = json.dumps(message).encode()
    assert Reader().loads(data) == wire.Reader().loads(data) == json.loads(data)


@pytest.mark.parametrize("text", ['{"a":"\\udc80"}', '{"a":1e999}', '{"a":1,"a":2}'])
def test_what_only_one_understands_is_understood(text: str) -> None:
    assert Reader().loads(text.encode()) == json.loads(text)


@pytest.mark.parametrize(
    "data", [b"[1]", b'{"a":NaN}', b"{" * 100_000, b"\xff", b'{"a":"\xc3\xa4"}', b'{"a":1} 2']
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(wire.WireError):
        Reader().loads(data)


def test_too_many_values_are_refused() -> None:
    with pytest.raises(wire.WireError, match="values"):
        Reader().loads(b'{"a":[' + b"0," * wire.MAX_VALUES + b"0]}")
