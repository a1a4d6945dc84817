"""A stream is cut into the lines that were sent, however it comes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangtop_core.attach.wire.lines import LineCutter
from hangtop_probe.wire import wire


@given(st.lists(st.binary(max_size=20).filter(lambda b: b"\n" not in b), max_size=20), st.data())
def test_lines_survive_any_way_of_cutting_the_stream(
    lines: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    cutter, got = LineCutter(), []
    while stream:
        count = data.draw(st.integers(1, len(stream)))
        got += cutter.feed(stream[:count])
        stream = stream[count:]
    assert got == lines


def test_a_bare_carriage_return_is_no_line_end() -> None:
    assert LineCutter().feed(b"50%\r100%\n") == [b"50%\r100%"]


def test_a_line_without_end_is_cut_once_and_its_rest_dropped() -> None:
    cutter = LineCutter(max_line=10)
    assert cutter.feed(b"x" * 8) == []
    assert cutter.feed(b"y" * 8) == [b"xxxxxxxxyyy"]
    assert cutter.feed(b"z" * 100) == []
    assert cutter.feed(b"end\nnext\n") == [b"next"]


def test_what_is_cut_is_refused_as_a_message() -> None:
    (line,) = LineCutter().feed(wire.MAGIC + b"{" + b" " * (wire.MAX_LINE + 10))
    with pytest.raises(wire.WireError, match="line of"):
        wire.Reader().feed(line)
    with pytest.raises(wire.WireError, match="line of"):  # though it is good JSON
        wire.Reader().feed(wire.MAGIC + b'{"id":%s1}' % (b" " * wire.MAX_LINE))
