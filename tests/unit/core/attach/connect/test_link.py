"""One link to a node: ready, slow, lost and connected to again, as what comes tells."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from hangtop_core.attach.connect.engine import Closed
from hangtop_core.attach.connect.launcher import ending_of
from hangtop_core.attach.connect.timing import Timing
from hangtop_core.attach.ways import large_packets
from hangtop_core.attach.ways.large_packets import TO
from hangtop_core.attach.ways.ssh import Login, SshLauncher
from hangtop_core.errors import NodeNotReadyError, RequestTimeoutError
from hangtop_probe.wire import wire
from support.crowd import HELLO
from support.linked import Asked, Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_hello_makes_it_ready(bench: Bench) -> None:
    bench.say(HELLO)
    assert bench.node["state"] == "ready"
    assert bench.node["python"] == "3.11.7"
    assert bench.readied == 1


@pytest.mark.parametrize("failures", [20, 100_000])
def test_a_node_that_is_not_reached_for_days_is_tried_at_the_slowest_rate(failures: int) -> None:
    assert 30.0 <= Timing().backoff(failures) <= 60.0


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

    monkeypatch.setattr(large_packets, "lost", lost)
    bench.engine.child = 4711
    bench.wait(11)
    assert asked == [(4711, False)]
    assert bench.node["reason"].startswith(f"no hello from the probe within 10 s: {TO}")
    assert bench.node["fix"].endswith(": ping -M do -s 1472 n1")


def test_slow_then_ready_again_by_pong(bench: Bench) -> None:
    bench.say(HELLO)
    bench.wait(0.5)
    bench.wait(3.5)
    assert bench.node["state"] == "slow"
    bench.pong()
    assert bench.node["state"] == "ready"
    assert bench.node["reason"] is None
    assert bench.node["latency_s"] == pytest.approx(3.75, abs=0.3)


def test_a_slow_answer_does_not_stand_for_minutes_as_the_way_to_a_node(bench: Bench) -> None:
    bench.say(HELLO)
    bench.wait(1.5)
    bench.pong()
    assert bench.node["latency_s"] > 1.0, "the probe was busy, as it is at first"
    asked = Asked(bench)
    for _ in range(40):
        bench.wait(1)
        bench.pong()
        bench.say({"id": asked.id, "seq": len(asked.pieces), "data": {}})
    assert bench.node["latency_s"] < 0.3


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
    bench.wait(0.25)
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


def test_who_bears_a_longer_silence_is_told_less_often_that_somebody_listens(bench: Bench) -> None:
    def told(silence: float) -> int:
        bench.say(HELLO)
        bench.link.listens(silence)
        asked, before = Asked(bench), len(bench.engine.sent)
        for _ in range(12):
            bench.say({"id": asked.id, "seq": len(asked.pieces), "data": {}})
            bench.link.table_came(bench.now, 60.0)
            for _ in range(20):
                bench.wait(1)
                bench.pong()
        return len(bench.engine.sent) - before

    assert told(60.0) >= 7
    bench.link.restart(bench.now, "once more")
    bench.wait(3)
    assert told(240.0) <= 3


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
    assert ("ulimit" in (bench.node["fix"] or "")) is (number != errno.EFAULT)
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


def test_the_end_of_an_earlier_ssh_leaves_the_log_of_the_present_one(bench: Bench) -> None:
    # GIVEN an ssh that was left, and a second one while the first is being ended
    bench.link.restart(bench.now, "no answer")
    bench.link.start(bench.now)
    bench.link.launcher = launcher = SshLauncher("n1", Login())
    argv = launcher.argv()
    log = Path(argv[argv.index("-E") + 1])
    log.write_text("ssh: connect to host n1 port 22: Connection refused\r\n")
    # WHEN the first ends only now, and then the second
    bench.link.on_closed(Closed(bench.engine.opened[0], -9, b""), bench.now)
    bench.link.on_closed(Closed(bench.engine.opened[1], 255, b""), bench.now)
    assert "nobody answers on its ssh port" in bench.node["reason"]


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
