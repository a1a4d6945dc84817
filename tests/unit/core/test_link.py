"""One link with a scripted probe and a clock of the test's own."""

from __future__ import annotations

import errno
import os
import time
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangtop_core.attach import largepackets
from hangtop_core.attach.engine import Closed
from hangtop_core.attach.largepackets import TO
from hangtop_core.attach.launcher import ending_of
from hangtop_core.attach.lines import LineCutter
from hangtop_core.attach.link import Link
from hangtop_core.attach.local import LocalLauncher
from hangtop_core.attach.messages import BadPieceError
from hangtop_core.attach.ssh import Login, SshLauncher
from hangtop_core.attach.timing import Moment, Timing
from hangtop_core.errors import HangtopError, NodeNotReadyError, RefusedError, RequestTimeoutError
from hangtop_probe import wire

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hangtop_core.attach.launcher import Launcher
    from hangtop_core.attach.messages import Hello

HELLO = {"id": 0, "hello": {"protocol": 1, "python": "3.11.7", "hostname": "n1", "clock": 5.0}}


class FakeEngine:
    """Remembers what a link does."""

    def __init__(self) -> None:
        self.opened: list[int] = []
        self.killed: list[int] = []
        self.ended: list[int] = []
        self.sent: list[dict[str, Any]] = []
        self.held_up = False
        self.child: int | None = None
        self._reader = wire.Reader()

    def connect(self, launcher: Launcher) -> int:
        self.opened.append(len(self.opened) + 1)
        return self.opened[-1]

    def write(self, conn: int, data: bytes) -> None:
        message = self._reader.feed(data.rstrip(b"\n"))
        assert message is not None
        self.sent.append(message)

    def close_input(self, conn: int) -> None:
        self.ended.append(conn)

    def kill(self, conn: int) -> None:
        self.killed.append(conn)

    def clogged(self, conn: int | None) -> bool:
        return self.held_up

    def pid(self, conn: int | None) -> int | None:
        return self.child


class Bench:
    """A link, its engine, and the node as the link describes it."""

    def __init__(self, ping: float | None = 5) -> None:
        self.engine = FakeEngine()
        self.node: dict[str, Any] = {}
        self.readied = self.ticks = 0
        self.mono = 100.0
        timing = Timing(hello=10, ping=ping, slow=3, lost=15, retry_first=1, retry_last=8)
        self.link = Link(LocalLauncher("n1"), self.engine, self, timing)
        self.link.start(self.now)

    @property
    def now(self) -> Moment:
        return Moment(1.7e9 + self.mono, self.mono)

    def link_changed(self, link: Link, changes: Mapping[str, Any]) -> None:
        self.node.update(changes)

    def link_ready(self, link: Link, hello: Hello, now: Moment) -> None:
        self.readied += 1

    def say(self, *messages: dict[str, Any]) -> None:
        for message in messages:
            self.raw(*(line.rstrip(b"\n") for line in wire.encode(message)))

    def raw(self, *lines: bytes) -> None:
        self.link.on_lines(self.engine.opened[-1], list(lines), self.now)

    def wait(self, seconds: float) -> None:
        for _ in range(round(seconds * 4)):
            self.mono += 0.25
            if self.mono >= self.link.due:  # as the collector does
                self.ticks += 1
                self.link.tick(self.now)

    def pong(self) -> None:
        pings = [m for m in self.engine.sent if m["op"] == "ping"]
        self.say({"id": pings[-1]["id"], "end": {}})


@pytest.fixture
def bench() -> Bench:
    return Bench()


class Asked:
    """A request and what came of it."""

    def __init__(self, bench: Bench, deadline: float | None = None) -> None:
        self.pieces: list[Any] = []
        self.ended: list[tuple[Any, HangtopError | None]] = []
        self.id = bench.link.request(
            "stacks", {}, on_piece=self.take, on_end=self.end, deadline=deadline
        )

    def take(self, raw: Any) -> None:
        if raw == "bad":
            raise BadPieceError("`$.pid`: expected int")
        if raw == "bug":
            raise RuntimeError("a mistake of ours")
        self.pieces.append(raw)

    def end(self, summary: Any, error: HangtopError | None) -> None:
        self.ended.append((summary, error))


def test_a_hello_makes_it_ready(bench: Bench) -> None:
    bench.say(HELLO)
    assert bench.node["state"] == "ready"
    assert bench.node["python"] == "3.11.7"
    assert bench.readied == 1


def test_banners_before_the_hello_are_kept_clean(bench: Bench) -> None:
    bench.raw(b"Welcome\x1b[2J", b"", b"\xff\xfe")
    bench.say(HELLO)
    assert bench.node["noise_lines"] == 2
    assert bench.node["noise"][0] == "Welcome"
    assert bench.node["state"] == "ready"


def test_another_protocol_is_incompatible_and_not_retried(bench: Bench) -> None:
    bench.say({"id": 0, "hello": {**HELLO["hello"], "protocol": 2}})  # type: ignore[dict-item]
    assert bench.node["state"] == "incompatible"
    bench.wait(60)
    assert bench.engine.opened == [1]
    bench.link.retry(bench.now)
    assert bench.engine.opened == [1, 2]


def test_a_hello_that_cannot_be_read_is_a_finding_then_unreachable(bench: Bench) -> None:
    bench.say({"id": 0, "hello": {"protocol": "one"}})
    assert "protocol" in bench.node["noise"][0]
    bench.wait(11)
    assert bench.node["state"] == "unreachable"


def test_no_hello_in_time_is_unreachable_and_tried_again(bench: Bench) -> None:
    bench.wait(11)
    assert bench.node["state"] == "unreachable"
    assert bench.engine.ended == [1]
    bench.wait(3)
    assert bench.engine.killed == [1]
    assert bench.engine.opened[:2] == [1, 2]


def test_no_hello_because_large_packets_get_lost_says_so(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int | None, bool]] = []

    def lost(pid: int | None, talking: bool) -> str:
        asked.append((pid, talking))
        return TO

    monkeypatch.setattr(largepackets, "lost", lost)
    bench.engine.child = 4711
    bench.wait(11)
    assert asked == [(4711, False)]
    assert bench.node["reason"].startswith(f"no hello from the probe within 10 s: {TO}")
    assert bench.node["fix"].startswith("ping -M do -s 1472 n1 ")


def test_slow_then_ready_again_by_pong(bench: Bench) -> None:
    bench.say(HELLO)
    bench.wait(0.5)
    bench.wait(3.5)
    assert bench.node["state"] == "slow"
    bench.pong()
    assert bench.node["state"] == "ready"
    assert bench.node["reason"] is None
    assert bench.node["latency_s"] == pytest.approx(3.75, abs=0.3)


def test_where_nothing_can_be_asked_only_what_is_due_can_be_missed() -> None:
    bench = Bench(ping=None)
    bench.say(HELLO)
    bench.wait(60)
    assert bench.node["state"] == "ready", "nothing was to come"
    bench.link.table_came(bench.now, 20.0)
    bench.wait(19)
    assert bench.node["state"] == "ready"
    bench.wait(1 + Timing().table + 1)
    assert bench.node["state"] == "slow"
    assert "nothing was heard for" in bench.node["reason"]
    bench.link.table_came(bench.now, 2.0)
    assert (bench.node["state"], bench.node["reason"]) == ("ready", None)
    assert not [message for message in bench.engine.sent if message["op"] == "ping"]
    bench.wait(2 + Timing().table + 16)
    assert bench.node["state"] == "lost"


def test_silence_is_lost_and_a_new_generation(bench: Bench) -> None:
    bench.say(HELLO)
    asked = Asked(bench)
    bench.wait(16)
    assert bench.node["state"] == "lost"
    assert bench.node["generation"] == 1
    assert isinstance(asked.ended[0][1], NodeNotReadyError)
    bench.wait(2)
    assert bench.engine.opened == [1, 2]
    bench.link.on_lines(1, [wire.encode(HELLO)[0].rstrip(b"\n")], bench.now)
    assert bench.node["state"] == "lost", "late words of the old generation count for nothing"
    bench.say(HELLO)
    assert bench.node["state"] == "ready"


def test_a_table_that_stands_still_is_slow_although_pings_are_answered(bench: Bench) -> None:
    bench.say(HELLO)

    def wait_and_answer(seconds: int) -> None:
        for _ in range(seconds):
            bench.wait(1)
            bench.pong()

    bench.link.table_came(bench.now, pause=30.0)
    wait_and_answer(39)
    assert bench.node["state"] == "ready", "it was told that the next one takes its time"
    wait_and_answer(2)
    assert bench.node["state"] == "slow"
    assert "process table stands still" in bench.node["reason"]
    since = bench.node["since"]
    wait_and_answer(100)
    assert (bench.node["state"], bench.node["since"]) == ("slow", since)
    assert bench.engine.opened == [1], "it is the node that hangs, not the connection"
    bench.wait(9)
    assert "no answer" in bench.node["reason"], "worse than before"
    wait_and_answer(2)
    assert "process table stands still" in bench.node["reason"]
    bench.link.table_came(bench.now, pause=1.0)
    assert (bench.node["state"], bench.node["reason"]) == ("ready", None)


def test_who_speaks_or_has_said_when_it_will_is_seldom_pinged(bench: Bench) -> None:
    def pings() -> int:
        return [message["op"] for message in bench.engine.sent].count("ping")

    bench.say(HELLO)
    bench.wait(0.5)
    bench.pong()
    assert pings() == 1, "once, to know how long that takes"
    for _ in range(20):
        bench.wait(1)
        bench.say({"id": 99, "end": {}})
    assert pings() == 1
    bench.link.table_came(bench.now, pause=8.0)
    bench.wait(8.5)
    assert pings() == 1, "it has said so"
    bench.wait(1)
    assert pings() == 2, "it was to speak by now"
    bench.wait(3.5)
    assert bench.node["state"] == "slow"
    bench.pong()
    for _ in range(45):
        bench.wait(1)
        bench.say({"id": 99, "end": {}})
    assert pings() == 3, "it has to hear now and then that somebody listens"


def test_one_that_rests_is_left_alone_until_something_is_due(bench: Bench) -> None:
    bench.say(HELLO)
    asked = Asked(bench)
    bench.link.table_came(bench.now, 30.0)
    bench.wait(1)
    bench.pong()
    for _ in range(4):
        bench.say({"id": asked.id, "seq": len(asked.pieces), "data": {}})
        bench.link.table_came(bench.now, 30.0)
        before = bench.ticks
        bench.wait(29)
        assert bench.ticks - before <= 3, "one for what came, one for the sign that we listen"
    late = Asked(bench, deadline=bench.mono + 2.0)
    bench.wait(3)
    assert isinstance(late.ended[0][1], RequestTimeoutError), "what is asked has a time of its own"
    bench.wait(60)
    assert bench.node["state"] != "ready", "and one that falls silent is seen"


def test_a_flood_ends_the_connection_at_once_and_a_trickle_does_not(bench: Bench) -> None:
    line = b"x" * 999
    for _ in range(5):
        bench.raw(*[line] * 1000)
        bench.say(HELLO if bench.readied == 0 else {"id": 99, "end": {}})
    assert bench.node["state"] == "ready"
    assert bench.node["noise_lines"] == 5000
    bench.raw(*[line] * 2000)
    assert bench.node["state"] == "lost"
    assert "floods" in bench.node["reason"]
    assert ".bashrc" in bench.node["fix"]
    assert bench.engine.killed == [1]
    bench.wait(2)
    bench.raw(*[b"y"] * 2000)
    bench.say(HELLO)
    assert (bench.node["state"], bench.engine.opened) == ("ready", [1, 2])


def test_a_node_that_costs_too_much_is_left_and_one_that_costs_its_share_is_not(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent = 0.0
    unasked = {"id": 99, "data": {}, "seq": 0}

    def busy() -> float:
        nonlocal spent
        spent += cost
        return spent

    monkeypatch.setattr(time, "thread_time", busy)
    cost = 0.05
    bench.say(HELLO)
    for _ in range(40):
        bench.say(unasked)
        bench.wait(0.5)
        bench.pong()
    assert bench.node["state"] == "ready"
    cost = 0.9
    bench.say(*[unasked] * 3)
    assert bench.node["state"] == "lost"
    assert "keep the other nodes waiting" in bench.node["reason"]
    assert bench.engine.killed == [1]
    bench.wait(2)
    bench.say(HELLO)
    assert bench.node["state"] == "lost", "a new connection brings no new share"


LONG = st.text("abcdef/._ 0123456789", min_size=1000, max_size=1500)
"""Longer than what is sent as it is: everything longer carries a checksum."""


@given(
    st.lists(LONG, min_size=1, max_size=4),
    st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
)
def test_garbage_anywhere_in_the_stream_never_becomes_a_piece(
    texts: list[str], garbage: list[bytes], random: Random
) -> None:
    bench = Bench()
    bench.say(HELLO)
    asked = Asked(bench)
    sent = [{"id": asked.id, "seq": seq, "data": text} for seq, text in enumerate(texts)]
    limit = random.choice([300, 700, wire.MAX_LINE])
    stream = b"".join(b"".join(wire.encode(one, n, limit)) for n, one in enumerate(sent))
    for some in garbage:
        at = random.randint(0, len(stream))
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


def test_words_without_a_pong_keep_it_from_being_lost(bench: Bench) -> None:
    bench.say(HELLO)
    asked = Asked(bench)
    for seq in range(30):
        bench.wait(1)
        bench.say({"id": asked.id, "seq": seq, "data": seq})
    assert bench.node["state"] == "slow"
    assert bench.engine.opened == [1]


def test_retries_wait_longer_every_time(bench: Bench) -> None:
    times = []
    for _ in range(7):
        times.append(bench.mono)
        bench.link.on_closed(Closed(bench.engine.opened[-1], 1, b"boom\n"), bench.now)
        count = len(bench.engine.opened)
        while len(bench.engine.opened) == count:
            bench.wait(0.25)
    waits = [b - a for a, b in zip(times, [*times[1:], bench.mono], strict=True)]
    assert waits[0] <= 1.25
    assert all(4 <= wait <= 8.25 for wait in waits[4:])
    assert bench.node["state"] == "unreachable"
    assert "boom" in bench.node["reason"]


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.EFAULT])
def test_a_command_that_could_not_be_started_is_tried_again(bench: Bench, number: int) -> None:
    reason = f"ssh: {os.strerror(number)}".encode()
    bench.link.on_closed(Closed(1, None, reason, number), bench.now)
    assert bench.node["state"] == "unreachable"
    assert "this machine cannot start ssh" in bench.node["reason"]
    assert os.strerror(number) in bench.node["reason"]
    bench.wait(1.5)
    assert len(bench.engine.opened) == 2


def test_a_program_that_is_not_here_is_not_tried_again(bench: Bench) -> None:
    bench.link.on_closed(Closed(1, None, b"ssh: No such file", errno.ENOENT), bench.now)
    assert bench.node["state"] == "no-python"  # on this machine, the program is Python
    ssh = ending_of(Closed(1, None, b"", errno.ENOENT), SshLauncher("n1", Login()), "ssh: x", False)
    assert (ssh.state, ssh.retry) == ("unreachable", False)
    assert ssh.fix
    bench.wait(10)
    assert len(bench.engine.opened) == 1


def test_a_damaged_line_starts_it_again(bench: Bench) -> None:
    bench.say(HELLO)
    asked = Asked(bench)
    bench.raw(wire.MAGIC + b"{cut")
    assert bench.node["state"] == "lost"
    assert "damaged" in bench.node["noise"][-1]
    assert asked.ended
    bench.wait(2)
    bench.say(HELLO)
    assert (bench.node["state"], bench.node["generation"]) == ("ready", 1)


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


def test_closing_ends_input_then_kills(bench: Bench) -> None:
    bench.say(HELLO)
    bench.link.close(bench.now)
    assert bench.engine.ended == [1]
    assert not bench.link.idle
    bench.wait(3)
    assert bench.engine.killed == [1]
    bench.link.on_closed(Closed(1, -9, b""), bench.now)
    assert bench.link.idle
    bench.wait(60)
    assert bench.engine.opened == [1]


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
