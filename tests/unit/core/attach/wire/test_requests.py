"""Requests over a link: pieces in order, credit, ends, refusals, deadlines, garbage between."""

from __future__ import annotations

import re
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangtop_core.attach.wire.lines import LineCutter
from hangtop_core.errors import NodeNotReadyError, RefusedError, RequestTimeoutError
from hangtop_probe.wire import wire
from support.crowd import HELLO
from support.linked import Asked, Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()


def long_text(random: Random) -> str:
    """Longer than what is sent as it is: everything longer carries a checksum."""
    return "".join(random.choices("abcdef/._ 0123456789", k=random.randint(1000, 1500)))


@given(
    st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=4),
    st.builds(Random, st.integers(0, 1 << 32)),
)
def test_garbage_anywhere_in_the_stream_never_becomes_a_piece(
    garbage: list[bytes], random: Random
) -> None:
    texts = [long_text(random) for _ in range(random.randint(1, 4))]
    bench = Bench()
    bench.say(HELLO)
    asked = Asked(bench)
    sent = [{"id": asked.id, "seq": seq, "data": text} for seq, text in enumerate(texts)]
    limit = random.choice([300, 700, wire.MAX_LINE])
    stream = b"".join(b"".join(wire.encode(one, n, limit)) for n, one in enumerate(sent))
    for some in garbage:
        starts = [0, *(end.end() for end in re.finditer(b"\n", stream))]
        near_a_start = random.choice(starts) + random.randint(0, len(wire.MAGIC))
        at = random.choice([near_a_start, random.randint(0, len(stream))])
        stream = stream[:at] + some + stream[at:]
    cutter = LineCutter()
    while stream:
        size = random.randint(1, len(stream))
        bench.link.on_lines(1, cutter.feed(stream[:size]), bench.now)
        stream = stream[size:]
    assert asked.pieces == texts[: len(asked.pieces)], "in order, and none that was not sent"
    if bench.node["state"] == "lost":
        assert isinstance(asked.ended[0][1], NodeNotReadyError)
        bench.wait(2)
        bench.say(HELLO)
    assert bench.node["state"] == "ready"
    again = Asked(bench)
    bench.say({"id": again.id, "seq": 0, "data": 1}, {"id": again.id, "end": {}})
    if asked.ended:
        assert (again.pieces, again.ended) == ([1], [({}, None)])


def test_a_long_answer_in_many_parts_is_no_flood(bench: Bench) -> None:
    bench.say(HELLO)
    asked = Asked(bench)
    text = Random(1).randbytes(2_000_000).hex()
    lines = wire.encode({"id": asked.id, "seq": 0, "data": text})
    assert sum(map(len, lines)) > 2_000_000
    bench.raw(*(line.rstrip(b"\n") for line in lines))
    assert asked.pieces == [text]


def test_pieces_that_are_missing_start_it_again(bench: Bench) -> None:
    bench.say(HELLO)
    asked = Asked(bench)
    bench.say({"id": asked.id, "seq": 0, "data": 1}, {"id": asked.id, "seq": 2, "data": 3})
    assert asked.pieces == [1]
    assert bench.node["state"] == "lost"


@pytest.mark.parametrize("piece", ["bad", "bug"])
def test_a_piece_that_cannot_be_used_is_a_finding_and_the_rest_goes_on(
    bench: Bench, piece: str
) -> None:
    bench.say(HELLO)
    asked = Asked(bench)
    for seq, data in enumerate((1, piece, 3)):
        bench.say({"id": asked.id, "seq": seq, "data": data})
    bench.say({"id": asked.id, "end": {"pids": 3}})
    assert asked.pieces == [1, 3]
    assert asked.ended == [({"pids": 3}, None)]
    assert bench.node["noise_lines"] == 1
    assert bench.node["noise"][0].startswith("stacks:")


def test_credit_is_given_while_pieces_come(bench: Bench) -> None:
    bench.say(HELLO)
    asked = Asked(bench)
    for seq in range(40):
        bench.say({"id": asked.id, "seq": seq, "data": seq})
    credit = [m for m in bench.engine.sent if m["op"] == "credit"]
    assert [(m["id"], m["n"]) for m in credit] == [(asked.id, 16)] * 2


def test_that_somebody_listens_is_said_with_credit_where_a_stream_comes(bench: Bench) -> None:
    bench.say(HELLO)
    bench.wait(0.5)
    bench.pong()
    asked = Asked(bench)
    for seq in range(12):
        bench.link.table_came(bench.now, pause=20.0)
        bench.wait(20)
        bench.say({"id": asked.id, "seq": seq, "data": seq})
    sent = [message["op"] for message in bench.engine.sent]
    assert sent.count("ping") == 1, "nothing has to be answered"
    assert sent.count("credit") >= 5
    allowed = [message["n"] for message in bench.engine.sent if message["op"] == "credit"]
    assert 10 <= sum(allowed) <= 12


def test_refusals_carry_their_fix(bench: Bench) -> None:
    bench.say(HELLO)
    asked = Asked(bench)
    error = {"kind": "denied", "text": "no\x1b[1m", "fix": "as-user root"}
    bench.say({"id": asked.id, "err": error})
    refused = asked.ended[0][1]
    assert isinstance(refused, RefusedError)
    assert (refused.kind, str(refused), refused.help) == (
        "denied",
        "stacks: no",
        "run hangtop as root, or: sudo hangtop",
    )


@pytest.mark.parametrize("error", [None, 7, {"kind": 3}, {}])
def test_a_refusal_that_cannot_be_read_still_ends_the_request(bench: Bench, error: Any) -> None:
    bench.say(HELLO)
    asked = Asked(bench)
    bench.say({"id": asked.id, "err": error})
    assert isinstance(asked.ended[0][1], RefusedError)


def test_a_deadline_ends_and_cancels(bench: Bench) -> None:
    bench.say(HELLO)
    bench.wait(0.25)
    bench.pong()
    asked = Asked(bench, deadline=bench.mono + 2)
    bench.wait(2.5)
    assert isinstance(asked.ended[0][1], RequestTimeoutError)
    assert {"op": "cancel", "id": asked.id} in bench.engine.sent
    bench.say({"id": asked.id, "end": {}})
    assert len(asked.ended) == 1


def test_nothing_can_be_asked_before_the_hello(bench: Bench) -> None:
    asked = Asked(bench)
    assert asked.id is None
    assert isinstance(asked.ended[0][1], NodeNotReadyError)


@pytest.mark.parametrize(
    "message",
    [{}, {"id": "x"}, {"id": 99, "data": 1}, {"id": 1, "seq": "a"}, {"id": None, "end": 1}],
)
def test_odd_messages_harm_nothing(bench: Bench, message: dict[str, Any]) -> None:
    bench.say(HELLO)
    bench.say(message)
    assert bench.node["state"] == "ready"


@pytest.mark.parametrize(("held_up", "state"), [(False, "slow"), (True, "lost")])
def test_what_is_heard_is_not_enough_where_nothing_gets_through(
    bench: Bench, held_up: bool, state: str
) -> None:
    bench.say(HELLO)
    bench.engine.held_up = held_up
    asked = Asked(bench)
    for seq in range(20):
        bench.wait(1)
        if bench.node["state"] == "lost":
            break
        bench.say({"id": asked.id, "seq": seq, "data": "still here"})
    assert bench.node["state"] == state
