"""The probe's side of a connection: requests, credit, ends; and calls that hang."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hangtop_probe.wire import wire
from hangtop_probe.wire.guard import Guard, Hanging
from hangtop_probe.wire.requests import FIRST_CREDIT, Refused, Request
from hangtop_probe.wire.server import Server, Writer
from support.processes import PATIENCE, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

CORE = Path(__file__).parents[4] / "core"


class Line:
    """A server on two pipes, with the other ends."""

    def __init__(self, silence: float = 30.0) -> None:
        self.requests_read, self.requests = os.pipe()
        self.answers, self.answers_write = os.pipe()
        self.server = Server(self.handlers(), self.requests_read, self.answers_write, silence)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        self.reader = wire.Reader()
        self.rest = b""

    def handlers(self) -> dict[str, Any]:
        def many(request: Request) -> dict[str, Any]:
            for number in range(request.message["n"]):
                request.give(
                    {"number": number, "fill": os.urandom(request.message.get("fill", 0)).hex()}
                )
            return {"sent": request.message["n"]}

        def tail(request: Request) -> dict[str, Any]:
            sent = sum(request.offer({"n": n}) for n in range(request.message["n"]))
            request.wait_credit()
            request.offer({"last": True})
            return {"sent": sent}

        def broken(request: Request) -> dict[str, Any]:
            return {"x": {}["missing"]}

        def refused(request: Request) -> dict[str, Any]:
            raise Refused("missing", "there is none", "get one")

        return {"many": many, "tail": tail, "broken": broken, "refused": refused}

    def send(self, **message: Any) -> None:
        os.write(self.requests, b"".join(wire.encode(message)))

    def receive(self) -> dict[str, Any]:
        while b"\n" not in self.rest:
            data = os.read(self.answers, 1 << 20)
            assert data, "the server closed"
            self.rest += data
        line, self.rest = self.rest.split(b"\n", 1)
        message = self.reader.feed(line)
        return message if message is not None else self.receive()

    def close(self) -> None:
        os.close(self.requests)
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()
        os.close(self.answers)
        self.server.writer.close(PATIENCE)
        for fd in (self.requests_read, self.answers_write):
            os.close(fd)


@pytest.fixture
def line() -> Iterator[Line]:
    line = Line()
    yield line
    line.close()


def test_pieces_are_numbered_and_end(line: Line) -> None:
    line.send(id=4, op="many", n=2)
    assert line.receive() == {"id": 4, "seq": 0, "data": {"number": 0, "fill": ""}}
    assert line.receive()["seq"] == 1
    assert line.receive() == {"id": 4, "end": {"sent": 2}}


def test_without_credit_pieces_are_held_back(line: Line) -> None:
    line.send(id=4, op="many", n=FIRST_CREDIT + 2)
    for _ in range(FIRST_CREDIT):
        line.receive()
    line.send(id=5, op="ping")
    pong = line.receive()
    assert pong["id"] == 5
    assert abs(pong["end"]["clock"] - time.time()) < PATIENCE
    line.send(op="credit", id=4, n=2)
    assert [line.receive().get("seq") for _ in range(3)] == [FIRST_CREDIT, FIRST_CREDIT + 1, None]


def test_a_tail_drops_and_says_how_many(line: Line) -> None:
    line.send(id=4, op="tail", n=FIRST_CREDIT + 7)
    for _ in range(FIRST_CREDIT):
        line.receive()
    line.send(op="credit", id=4, n=1)
    assert line.receive()["data"] == {"last": True, "lost": 7}
    assert line.receive() == {"id": 4, "end": {"sent": FIRST_CREDIT}}


def test_cancel_ends_a_request_that_waits_for_credit(line: Line) -> None:
    line.send(id=4, op="many", n=1000)
    for _ in range(FIRST_CREDIT):
        line.receive()
    line.send(op="cancel", id=4)
    assert line.receive() == {"id": 4, "end": {"cancelled": True}}


def test_ping_overtakes_what_is_queued(line: Line) -> None:
    line.send(id=4, op="many", n=40, fill=200_000)
    line.receive()
    time.sleep(0.2)
    line.send(id=5, op="ping")
    before = 0
    while line.receive()["id"] != 5:
        before += 1
    assert before < 39


def test_failures_are_answers(line: Line) -> None:
    line.send(id=4, op="refused")
    error = {"kind": "missing", "text": "there is none", "fix": "get one"}
    assert line.receive() == {"id": 4, "err": error}
    line.send(id=5, op="broken")
    answer = line.receive()
    assert answer["err"]["kind"] == "error"
    assert "KeyError: 'missing' (test_server.py:" in answer["err"]["text"]
    line.send(id=6, op="nonsense")
    assert line.receive()["err"]["kind"] == "unsupported"


def test_garbage_is_answered_and_survived(line: Line) -> None:
    os.write(line.requests, b"hello?\n" + wire.MAGIC + b"{{{\n" + wire.MAGIC + b'{"op":1}\n')
    assert line.receive()["err"]["kind"] == "wire"
    assert line.receive()["err"]["kind"] == "error"
    os.write(line.requests, b"y" * (wire.MAX_LINE * 2) + b"\n")
    line.send(id=7, op="ping")
    pong = line.receive()
    assert pong["id"] == 7
    assert abs(pong["end"]["clock"] - time.time()) < PATIENCE


def test_silence_ends_it() -> None:
    line = Line(silence=0.2)
    line.thread.join(PATIENCE)
    assert not line.thread.is_alive()
    line.close()


def test_a_reader_that_is_gone_ends_it() -> None:
    line = Line(silence=9 * PATIENCE)  # which would end it, too
    os.close(line.answers)
    line.send(id=4, op="ping")
    line.thread.join(PATIENCE)
    assert not line.thread.is_alive()
    line.answers = os.open(os.devnull, os.O_RDONLY)
    line.close()


def test_a_call_that_hangs_is_left_behind() -> None:
    guard = Guard(limit=2)
    forever = threading.Event()
    assert guard.call(lambda: 7) == 7
    with pytest.raises(Hanging):
        guard.call(forever.wait, 0.05)
    assert guard.call(lambda: 8) == 8
    with pytest.raises(ZeroDivisionError):
        guard.call(lambda: 1 // 0)
    with pytest.raises(Hanging):
        guard.call(forever.wait, 0.05)
    with pytest.raises(Hanging, match="too many"):
        guard.call(lambda: 9)
    forever.set()
    assert wait_until(lambda: guard.hanging == 0)
    assert guard.call(lambda: 9) == 9


def test_a_call_that_hangs_holds_up_no_other_thread() -> None:
    guard, forever, began = Guard(), threading.Event(), threading.Event()

    def hang() -> None:
        began.set()
        forever.wait()

    def call() -> None:
        with contextlib.suppress(Hanging):
            guard.call(hang, PATIENCE)

    other = threading.Thread(target=call)
    other.start()
    try:
        assert began.wait(PATIENCE)
        assert guard.call(lambda: 7, PATIENCE / 2) == 7
    finally:
        forever.set()
        other.join()


def test_what_was_cancelled_may_clean_up_before_the_probe_ends() -> None:
    cleaned = threading.Event()

    def handler(request: Request) -> None:
        try:
            request.cancelled.wait(PATIENCE)
        finally:
            time.sleep(0.3)
            cleaned.set()

    reading, writing = os.pipe()
    with open(os.devnull, "wb") as null:
        server = Server({"trace": handler}, reading, null.fileno())
        for line in wire.encode({"id": 1, "op": "trace"}):
            os.write(writing, line)
        os.close(writing)
        server.run()
        server.wait_answered(5.0)
        assert cleaned.is_set()
        server.writer.close(1.0)
    os.close(reading)


def test_what_is_encoded_holds_up_no_other_message(monkeypatch: pytest.MonkeyPatch) -> None:
    encode, began, go_on = wire.encode, threading.Event(), threading.Event()

    def slow(message: dict[str, Any], *rest: int) -> list[bytes]:
        if "large" in message:
            began.set()
            go_on.wait(PATIENCE)
        return encode(message, *rest)

    monkeypatch.setattr(wire, "encode", slow)
    reading, writing = os.pipe()
    writer = Writer(writing, lambda: None)
    large = threading.Thread(target=writer.send, args=({"large": 1}, False))
    large.start()
    try:
        assert began.wait(PATIENCE)
        small = threading.Thread(target=writer.send, args=({"small": 1}, True))
        small.start()
        assert select.select([reading], [], [], PATIENCE / 4)[0]
        assert b"small" in os.read(reading, 4096)
        small.join()
    finally:
        go_on.set()
        large.join()
        writer.close(PATIENCE)
        os.close(reading)
        os.close(writing)


def test_all_that_answers_is_loaded_at_once() -> None:
    """When somebody asks, the file server that the modules are on may be gone."""
    code = (
        "import sys; from hangtop_probe.probe import MODULES, Probe; Probe().handlers(); "
        "print(*[name for name in MODULES.values() if name not in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_a_request_for_which_there_is_no_thread_is_refused_and_the_others_go_on(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("hangtop_probe.wire.server.threading.Thread.start", start)
    line.send(op="many", id=1, n=1)
    assert "can't start new thread" in line.receive()["err"]["text"]
    monkeypatch.undo()
    line.send(op="many", id=1, n=1)
    assert line.receive()["data"]["number"] == 0
    assert line.receive()["end"] == {"sent": 1}


NEVER_TAKEN = """
import os, signal, sys, threading
sys.path.insert(0, sys.argv[1])
from hangtop_probe.wire import server

server.TAKEN_S = 1
threading.Thread.start = lambda self: threading.Event().wait()  # as CPython without memory
connection = server.Server.__new__(server.Server)
connection._wake_out, connection._wake_in = os.pipe()
connection._in, connection._silence, connection._alarm = 0, 60.0, signal.alarm
connection._line = lambda line: threading.Thread(target=print).start()
connection.run()
"""


def test_a_request_that_is_never_taken_ends_it() -> None:
    """Where a thread cannot be made `Thread.start` may hang: nobody reads that the head left."""
    process = subprocess.Popen(
        [sys.executable, "-c", NEVER_TAKEN, str(CORE)], stdin=subprocess.PIPE
    )
    assert process.stdin is not None
    process.stdin.write(b"a line\n")
    process.stdin.close()
    assert process.wait(PATIENCE) == -signal.SIGALRM
