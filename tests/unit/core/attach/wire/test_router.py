"""Connections that share one child, with a real child: a small cluster in one process."""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from hangtop_core.attach.connect.channel import Action, Order, Orders, Part
from hangtop_core.attach.connect.engine import Closed, Event, Lines, PipeEngine
from hangtop_core.attach.ways.local import LocalLauncher
from hangtop_core.attach.wire.command_log import CommandLog
from hangtop_core.attach.wire.router import GATHER_S, Router
from support.processes import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

NODES = """
import os, sys, time
names = set(sys.argv[1:])
print("banner of nobody")
for name in sorted(names): print(name + ": pid", os.getpid())
sys.stdout.flush()
for line in sys.stdin.buffer:
    to, _, text = line.decode().rstrip().partition(" ")
    for name in sorted(names if to == "*" else set(to.split(",")) & names):
        if text.startswith("fail "):
            print(name + ": left with", text[5:], file=sys.stderr, flush=True)
            names.discard(name)
            time.sleep(0.05)
            print("last words", file=sys.stderr, flush=True)
        elif text == "end":
            names.discard(name)
        elif text == "die":
            print("everything breaks", file=sys.stderr, flush=True)
            sys.exit(3)
        else:
            print(name + ": got", text, flush=True)
for name in sorted(names): print(name + ": end of input", flush=True)
"""


class Share:
    """One run of the small cluster: `Shared` as srun would be, with other labels."""

    opening = b"* opened\n"

    def __init__(self, nodes: Sequence[str]) -> None:
        self.nodes = tuple(nodes)
        self.argv = [sys.executable, "-ISc", NODES, *nodes]

    def output_part(self, line: bytes) -> Part | None:
        name, colon, text = line.partition(b": ")
        return Part(name.decode(), text) if colon else None

    def error_part(self, line: bytes) -> Part | None:
        name, colon, text = line.partition(b": left with ")
        return Part(name.decode(), line, over=True, code=int(text)) if colon else None

    def frame(self, nodes: Sequence[str], data: bytes | None) -> bytes:
        to = "*" if len(nodes) == len(self.nodes) else ",".join(nodes)
        return f"{to} {'end' if data is None else data.decode()}\n".encode()


class SmallCluster:
    """A channel that remembers what was begun, by `Share` or what is given instead of it."""

    def __init__(self, *nodes: str, share: Callable[[Sequence[str]], Share] = Share) -> None:
        self.nodes = frozenset(nodes)
        self.begun: list[tuple[str, ...]] = []
        self._share = share

    def begin(self, nodes: Sequence[str]) -> Share:
        self.begun.append(tuple(nodes))
        return self._share(nodes)


class Member(NamedTuple):
    """As much of a launcher as the router asks for."""

    node: str
    channel: SmallCluster


class Bench:
    """A router over a real engine, driven as the session's thread does."""

    def __init__(self) -> None:
        self.inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.engine = PipeEngine(self.inbox.put)
        self.commands = CommandLog()
        self.router = Router(self.engine, self.commands)
        self.lines: dict[int, list[bytes]] = {}
        self.closed: dict[int, Closed] = {}

    def open(self, channel: SmallCluster, *nodes: str) -> list[int]:
        return [self.router.connect(Member(node, channel)) for node in nodes]  # type: ignore[arg-type]

    def turn(self) -> None:
        self.router.flush()
        events = self.router.due(time.monotonic())
        with contextlib.suppress(queue.Empty):
            events += self.router.take(self.inbox.get(timeout=0.02))
        for event in events:
            assert event.conn not in self.closed, "nothing comes after the end"
            if isinstance(event, Closed):
                self.closed[event.conn] = event
            elif isinstance(event, Lines):
                self.lines.setdefault(event.conn, []).extend(event.lines)
                self.router.consumed(event.conn, event.size)

    def until_heard(self, conn: int, *lines: bytes) -> None:
        self.until(lambda: self.lines.get(conn, [])[-len(lines) :] == list(lines))

    def until_closed(self, *conns: int) -> None:
        self.until(lambda: self.closed.keys() >= set(conns))

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, (self.lines, self.closed)
            self.turn()


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    bench.engine.start()
    yield bench
    bench.engine.stop()


def test_one_child_serves_all_nodes_and_each_gets_its_own(bench: Bench) -> None:
    channel = SmallCluster("a", "b", "c")
    a, b, c = bench.open(channel, "a", "b", "c")
    bench.router.write(a, b"for a")
    bench.router.write(c, b"for c")
    bench.until_heard(a, b"got for a")
    bench.until_heard(c, b"got for c")
    assert channel.begun == [("a", "b", "c")]
    assert len({bench.lines[conn][0] for conn in (a, b, c)}) == 1, "one process"
    assert [bench.lines[conn][1:] for conn in (a, b, c)] == [
        [b"got opened", b"got for a"],
        [b"got opened"],
        [b"got opened", b"got for c"],
    ]


def test_what_all_get_is_written_once_and_order_is_kept(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[bytes] = []
    write = bench.engine.write
    monkeypatch.setattr(
        bench.engine, "write", lambda c, data: (written.append(data), write(c, data))
    )
    conns = bench.open(SmallCluster("a", "b"), "a", "b")
    for conn in conns:
        bench.router.write(conn, b"hello")
    bench.router.write(conns[1], b"only b")
    for conn in conns:
        bench.router.write(conn, b"bye")
    bench.until_heard(conns[0], b"got hello", b"got bye")
    bench.until_heard(conns[1], b"got hello", b"got only b", b"got bye")
    assert written[:2] == [b"* opened\n", b"* hello\n"]
    assert len(written) == 5


def test_who_comes_late_is_waited_for_only_briefly(bench: Bench) -> None:
    channel = SmallCluster("a", "b")
    began = time.monotonic()
    (a,) = bench.open(channel, "a")
    bench.until(lambda: a in bench.lines)
    assert time.monotonic() - began >= GATHER_S
    (b,) = bench.open(channel, "b")
    bench.until(lambda: b in bench.lines)
    assert channel.begun == [("a",), ("b",)]
    assert bench.lines[a] != bench.lines[b], "two processes"


def test_a_node_that_ends_takes_nobody_with_it(bench: Bench) -> None:
    a, b = bench.open(SmallCluster("a", "b"), "a", "b")
    bench.router.write(a, b"fail 7")
    bench.until_closed(a)
    assert bench.closed[a].code == 7
    assert sorted(bench.closed[a].stderr.splitlines()) == [b"a: left with 7", b"last words"]
    bench.router.write(b, b"still there?")
    bench.until_heard(b, b"got still there?")
    assert b not in bench.closed


def test_a_node_that_is_given_up_takes_nobody_with_it(bench: Bench) -> None:
    channel = SmallCluster("a", "b")
    a, b = bench.open(channel, "a", "b")
    bench.until(lambda: a in bench.lines)
    bench.router.close_input(a)
    assert not bench.router.clogged(b)
    bench.router.kill(a)
    bench.until_closed(a)
    assert bench.router.clogged(b)
    (again,) = bench.open(channel, "a")
    bench.until(lambda: again in bench.lines)
    assert not bench.router.clogged(again)
    bench.router.write(b, b"still there?")
    bench.until_heard(b, b"got still there?")
    assert bench.lines[a][1:] in ([], [b"got opened"]), "nothing more of what was given up"


def test_the_end_of_the_child_is_the_end_of_all(bench: Bench) -> None:
    conns = bench.open(SmallCluster("a", "b"), "a", "b")
    bench.router.write(conns[0], b"die")
    bench.until_closed(*conns)
    for conn in conns:
        assert (bench.closed[conn].code, bench.closed[conn].stderr) == (3, b"everything breaks\n")


def test_the_child_ends_with_the_input_of_its_last_node(bench: Bench) -> None:
    conns = bench.open(SmallCluster("a", "b"), "a", "b")
    bench.until(lambda: set(conns) <= bench.lines.keys())
    bench.router.close_input(conns[0])
    for _ in range(5):
        bench.turn()
    assert not bench.closed
    bench.router.close_input(conns[1])
    bench.until_closed(*conns)
    assert {bench.closed[conn].code for conn in conns} == {0}


def test_killing_the_last_node_kills_the_child(bench: Bench) -> None:
    conns = bench.open(SmallCluster("a", "b"), "a", "b")
    bench.until(lambda: set(conns) <= bench.lines.keys())
    pid = int(bench.lines[conns[0]][0].split()[1])
    os.kill(pid, signal.SIGSTOP)
    for conn in conns:
        bench.router.close_input(conn)
    for conn in conns:
        bench.router.kill(conn)
    bench.until_closed(*conns)
    assert bench.closed[conns[1]].code == -signal.SIGKILL
    assert not os.path.exists(f"/proc/{pid}")


def test_a_child_that_cannot_be_started_is_told_to_every_node(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = SmallCluster("a", "b")
    monkeypatch.setattr(sys, "executable", "/nowhere/srun")
    conns = bench.open(channel, "a", "b")
    bench.until_closed(*conns)
    assert all(bench.closed[conn].unstarted == errno.ENOENT for conn in conns)
    assert all(b"No such file" in bench.closed[conn].stderr for conn in conns)


def test_connections_of_their_own_pass_through(bench: Bench) -> None:
    conn = bench.router.connect(LocalLauncher("n"))
    bench.until(lambda: bool(bench.lines.get(conn)))
    assert b"hello" in bench.lines[conn][0]
    bench.router.close_input(conn)
    bench.until_closed(conn)
    assert bench.closed[conn].code == 0


class OneWay(Share):
    """One run that cannot be written to; each word for a node goes by a command of its own."""

    opening = b""
    ASIDE = """
import sys, time
for word in sys.argv[1:]:
    name, _, text = word.partition("=")
    if text == "fail":
        print(name + ": left with 5", file=sys.stderr)
    elif text == "wait":
        time.sleep(1000)
    else:
        print(name + ": answered", text, flush=True)
"""

    def orders(self, writes: Sequence[tuple[str, bytes | None]]) -> Orders:
        texts = {node: data.decode() for node, data in writes if data is not None}
        refused = [(node, b"no") for node, text in texts.items() if text == "refuse"]
        rest = {node: text for node, text in texts.items() if text != "refuse"}
        words = [f"{node}={text}" for node, text in rest.items()]
        argv = [sys.executable, "-ISc", self.ASIDE, *words]
        return Orders([Order(argv, dict.fromkeys(rest, (1,)))] if rest else [], refused)

    def refusal(self, request: int, code: int | None, reason: bytes) -> bytes:
        return f"{request} over with {code} {reason.decode()}".strip().encode()


def test_what_cannot_be_written_goes_beside_and_comes_back(bench: Bench) -> None:
    a, b, c = bench.open(SmallCluster("a", "b", "c", share=OneWay), "a", "b", "c")
    bench.until(lambda: {a, b, c} <= bench.lines.keys())
    bench.router.write(a, b"this")
    bench.router.write(b, b"fail")
    bench.router.write(c, b"refuse")
    bench.until_heard(a, b"answered this", b"1 over with 0")
    bench.until_heard(b, b"1 over with 5 b: left with 5")
    bench.until_heard(c, b"no")
    assert not bench.closed, "the run itself goes on"


def test_what_goes_beside_ends_with_the_run(bench: Bench) -> None:
    others = children()
    (a,) = bench.open(SmallCluster("a", share=OneWay), "a")
    bench.until(lambda: a in bench.lines)
    bench.router.write(a, b"wait")
    bench.until(lambda: len(children() - others) == 2)
    bench.router.close_input(a)
    bench.until_closed(a)
    bench.until(lambda: not children() - others)


class Carry(Share):
    """One run to which what is big comes by a command beside it."""

    def __init__(self, nodes: Sequence[str], argv: list[str], seconds: float) -> None:
        super().__init__(nodes)
        self.todo: list[str] | None = argv
        self.seconds = seconds
        self.notes: list[str] = []
        self.over = False

    def waits(self, node: str, data: bytes | None) -> bool:
        return data == b"big" and not self.over

    def act(self, mono: float) -> Action:
        argv, self.todo = self.todo, None
        notes, self.notes = self.notes, []
        return Action(b"* beside\n" if argv else b"", argv, self.seconds, "carry", notes)

    def acted(self, code: int | None, stderr: str) -> list[bytes]:
        self.over = True
        self.notes.append(f"ended with {code}: {stderr}")
        return [stderr.encode()] if "unreached" in stderr else []


def carried(*nodes: str, by: str, seconds: float = 60.0) -> SmallCluster:
    """A channel whose runs are `Carry`, with this program."""
    argv = [sys.executable, "-ISc", by]
    return SmallCluster(*nodes, share=lambda nodes: Carry(nodes, argv, seconds))


def test_only_who_needs_what_comes_beside_waits_for_it(bench: Bench, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    read = f"import sys; open({str(gate)!r}).read(); sys.exit('broken')"
    a, b, c = bench.open(carried("a", "b", "c", by=read), "a", "b", "c")
    for word in (b"first", b"big", b"behind"):
        bench.router.write(a, word)
    bench.router.write(b, b"big")
    bench.router.write(c, b"small")
    bench.until_heard(c, b"got beside", b"got small")
    bench.until_heard(a, b"got beside", b"got first")
    (record,) = bench.commands.records()
    assert (record.node, record.what, record.outcome) == ("a,b,c", "carry", "running")
    gate.write_text("")
    bench.until_heard(a, b"got big", b"got behind")
    bench.until_heard(b, b"got beside", b"got big")
    (record,) = bench.commands.records()
    assert record.outcome == "ended with 1: broken\n"


def test_a_node_that_what_comes_beside_does_not_reach_ends_the_run(bench: Bench) -> None:
    program = "import sys; sys.exit('b is unreached')"
    conns = bench.open(carried("a", "b", by=program), "a", "b")
    bench.router.write(conns[0], b"big")
    bench.until_closed(*conns)
    assert all(b"b is unreached" in bench.closed[conn].stderr for conn in conns)
    assert bench.commands.records()[0].outcome == "ended with 1: b is unreached\n"


def test_what_comes_beside_has_its_time_and_ends_with_the_run(bench: Bench) -> None:
    sleep = "import time; time.sleep(1000)"
    others = children()
    (a,) = bench.open(carried("a", by=sleep), "a")
    bench.router.write(a, b"big")
    bench.until(lambda: len(children() - others) == 2)
    bench.router.kill(a)
    bench.until(lambda: not children() - others)
    bench.until(lambda: bench.commands.records()[0].outcome == "ended with its step")
    (a,) = bench.open(carried("a", by=sleep, seconds=0.1), "a")
    bench.router.write(a, b"big")
    bench.until_heard(a, b"got big")
    assert bench.commands.records()[1].outcome == "ended with -9: "


def children() -> set[str]:
    lists = Path("/proc/self/task").glob("*/children")
    return {pid for one in lists for pid in one.read_text().split()}
