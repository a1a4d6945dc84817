"""Messages as lines: whole, packed or in parts, among noise, damaged or hostile."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import zlib
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangtop_probe.wire import wire

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


@given(JSON, st.integers(0, 5), st.integers(0, 5))
def test_envelopes_with_wrong_types_are_wire_errors(value: Any, part: int, of: int) -> None:
    for outer in ({"z": value}, {"z": "", "m": value, "part": part, "of": of, "crc": 0}):
        with suppress(wire.WireError):
            wire.Reader().feed(wire.MAGIC + json.dumps(outer).encode())


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


def test_a_message_whose_parts_do_not_fit_together_is_refused() -> None:
    texts = ("".join(map(chr, range(300, end))) for end in (1500, 3000))
    first, second = (wire.encode({"text": text}, 1, 300) for text in texts)
    assert 1 < len(first) < len(second)
    reader = wire.Reader()
    reader.feed(first[0].rstrip(b"\n"))
    with pytest.raises(wire.WireError, match="changed its length"):
        reader.feed(second[1].rstrip(b"\n"))


def test_a_body_that_is_cut_is_refused() -> None:
    """Also where all of it came but its checksum, so that it would be read."""
    body = base64.b64encode(zlib.compress(b'{"id":1}')[:-2])
    with pytest.raises(wire.WireError, match="cut body"):
        wire.Reader().feed(wire.MAGIC + b'{"z":"%s"}' % body)


def test_a_body_that_inflates_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_MESSAGE", 10_000)
    [line] = wire.encode({"text": "a" * 20_000})
    with pytest.raises(wire.WireError, match="over 10000 bytes"):
        wire.Reader().feed(line.rstrip(b"\n"))


def test_noise_before_a_message_on_the_same_line_is_cut_off() -> None:
    reader = wire.Reader()
    assert reader.feed(b"Password: " + wire.encode({"id": 1})[0].rstrip(b"\n")) == {"id": 1}
    assert reader.noise == [b"Password: "]


HOSTILE = """
import base64, resource, sys, zlib
from hangtop_probe.wire import wire

SIZE = wire.MAX_MESSAGE - 64
VALUES = wire.MAX_VALUES - 16
BODIES = {
    "many lists": lambda: b"[],".join([b""] * (SIZE // 3)),
    "as many lists as may be": lambda: b"[],".join([b""] * (VALUES // 2)),
    "keys": lambda: b'"x":{},' + b",".join(b'"%07x":{}' % n for n in range(VALUES // 2)) + b",",
    "strings": lambda: b",".join(b'"%07x"' % n for n in range(VALUES)) + b",",
    "a wide text": lambda: b'"' + b"a" * (SIZE - 20) + b'\\\\ud83d\\\\ude00",',
    "a wide character": lambda: b'"' + b"a" * (SIZE - 20) + "\\U0001f600".encode() + b'",',
}

def lines(name):
    inside = BODIES[name]()
    body = b'{"a":{%s"z":0}}' if name == "keys" else b'{"a":[%s0]}'
    packed = base64.b64encode(zlib.compress(body % inside))
    pieces = [packed[at : at + 200_000] for at in range(0, len(packed), 200_000)]
    for at, piece in enumerate(pieces):
        head = b'{"m":1,"part":%d,"of":%d,"crc":%d,"z":"' % (at, len(pieces), zlib.crc32(piece))
        yield wire.MAGIC + head + piece + b'"}'

def pieces_for_ever():
    piece = b"a" * 200_000
    for part in range(2 * wire.MAX_MESSAGE // len(piece)):
        for number in range(wire.MAX_PARTIAL):
            envelope = (number, part, 99_000, zlib.crc32(piece), piece)
            yield wire.MAGIC + b'{"m":%d,"part":%d,"of":%d,"crc":%d,"z":"%s"}' % envelope

sent = pieces_for_ever() if sys.argv[1] == "pieces" else list(lines(sys.argv[1]))
def peak():
    found = open("/proc/self/status").read().partition("VmHWM:")[2]
    return int(found.split()[0]) // 1024
open("/proc/self/clear_refs", "w").write("5")
before, reader, said = peak(), wire.Reader(), "taken"
try:
    for line in sent:
        reader.feed(line)
except wire.WireError as error:
    said = str(error)
print(peak() - before, said)
"""


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("many lists", "more than 1000000 values"),
        ("as many lists as may be", "taken"),
        ("keys", "taken"),
        ("strings", "taken"),
        ("a wide text", "taken"),
        ("a wide character", "not JSON"),
        ("pieces", "message over"),
    ],
)
def test_the_largest_message_costs_the_reader_little_memory(what: str, said: str) -> None:
    command = [sys.executable, "-c", HOSTILE, what]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    megabytes, told = done.stdout.strip().split(" ", 1)
    assert told.startswith(said), done.stdout
    assert int(megabytes) < 150, done.stdout


def test_the_process_table_of_a_big_node_is_no_large_message() -> None:
    threads = [[4711 + n, 1, 2, 3, 4, 17, None] for n in range(200)]
    processes = {str(pid): {"pid": pid, "threads": threads} for pid in range(250)}
    message = {"id": 1, "data": {"set": processes}}
    assert feed(wire.Reader(), wire.encode(message)) == [message]
