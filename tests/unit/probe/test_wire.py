from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangtop_probe import wire

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=30,
)
# A body with only the key `z` is the envelope of a compressed one.
OBJECTS = st.dictionaries(st.text().filter(lambda key: key != "z"), JSON, max_size=6)
LINE_SIZES = st.integers(160, 4000)


def feed(reader: wire.Reader, lines: list[bytes]) -> list[dict[str, Any]]:
    messages = [reader.feed(line.rstrip(b"\n")) for line in lines]
    return [message for message in messages if message is not None]


@given(OBJECTS, LINE_SIZES)
def test_any_object_comes_back_at_any_line_size(message: dict[str, Any], size: int) -> None:
    lines = wire.encode(message, 3, size)
    assert all(len(line) <= size and line.endswith(b"\n") for line in lines)
    assert all(line.count(b"\n") == 1 for line in lines)
    assert feed(wire.Reader(), lines) == [message]


@given(st.lists(OBJECTS, max_size=4), st.lists(st.binary(max_size=60), max_size=8), st.randoms())
def test_garbage_between_messages_is_noise(
    messages: list[dict[str, Any]], garbage: list[bytes], random: Any
) -> None:
    noise = [g.replace(b"\n", b"").replace(b"\x1e", b"") for g in garbage]
    lines = [line for m, message in enumerate(messages) for line in wire.encode(message, m)]
    mixed = list(lines)
    for line in noise:
        mixed.insert(random.randint(0, len(mixed)), line)
    reader = wire.Reader()
    assert feed(reader, mixed) == messages
    assert reader.noise_lines == sum(bool(line.strip()) for line in noise)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_none_are_not_sent_and_not_taken(value: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        wire.encode({"at": value})
    with pytest.raises(wire.WireError):
        wire.Reader().feed(wire.MAGIC + b'{"at": %s}' % repr(value).encode())
    with pytest.raises(wire.WireError, match="number"):
        wire.Reader().feed(wire.MAGIC + b'{"at": NaN}')


@given(st.binary(max_size=300))
def test_what_cannot_be_read_is_a_wire_error_and_nothing_else(garbage: bytes) -> None:
    for line in (garbage, wire.MAGIC + garbage, wire.MAGIC + b'{"z":"' + garbage + b'"}'):
        try:
            wire.Reader().feed(line)
        except wire.WireError:
            continue


@given(JSON, st.integers(0, 5), st.integers(0, 5))
def test_envelopes_with_wrong_types_are_wire_errors(value: Any, part: int, of: int) -> None:
    for outer in ({"z": value}, {"z": "", "m": value, "part": part, "of": of, "crc": 0}):
        import json

        line = wire.MAGIC + json.dumps(outer).encode()
        try:
            wire.Reader().feed(line)
        except wire.WireError:
            continue


@given(st.lists(st.text(min_size=200, max_size=900), min_size=2, max_size=3), st.randoms())
def test_parts_may_come_in_any_order_and_interleaved(texts: list[str], random: Any) -> None:
    messages = [{"text": text} for text in texts]
    lines = [line for m, message in enumerate(messages) for line in wire.encode(message, m, 200)]
    random.shuffle(lines)
    assert sorted(feed(wire.Reader(), lines), key=repr) == sorted(messages, key=repr)


def test_a_damaged_part_is_refused() -> None:
    lines = wire.encode({"text": "".join(map(chr, range(300, 1500)))}, 1, 300)
    assert len(lines) > 2
    broken = lines[1].replace(lines[1][80:84], b"AAAA")
    reader = wire.Reader()
    reader.feed(lines[0].rstrip(b"\n"))
    with pytest.raises(wire.WireError):
        reader.feed(broken.rstrip(b"\n"))


def test_a_body_that_inflates_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_MESSAGE", 10_000)
    [line] = wire.encode({"text": "a" * 20_000})
    with pytest.raises(wire.WireError, match="over 10000 bytes"):
        wire.Reader().feed(line.rstrip(b"\n"))


def test_noise_before_a_message_on_the_same_line_is_cut_off() -> None:
    reader = wire.Reader()
    assert reader.feed(b"Password: " + wire.encode({"id": 1})[0].rstrip(b"\n")) == {"id": 1}
    assert reader.noise == [b"Password: "]
