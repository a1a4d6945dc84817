"""Many nodes at once: whose turn it is to connect, and whom nobody is to blame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hangtop_core.attach.engine import Lines
from hangtop_core.attach.local import LocalLauncher, Wave
from hangtop_core.attach.timing import Moment, Timing
from hangtop_core.collector import Collector
from hangtop_core.updates import Options
from hangtop_probe import wire

if TYPE_CHECKING:
    from collections.abc import Sequence

HELLO = {"id": 0, "hello": {"protocol": 1, "python": "3.11.7", "hostname": "n1", "clock": 5.0}}


class Gated(LocalLauncher):
    """A node behind a gate that lets only so many log in at a time."""

    def __init__(self, name: str, at_once: int) -> None:
        super().__init__(name)
        self._wave = Wave("a gate", at_once, 60.0)

    @property
    def wave(self) -> Wave:
        return self._wave


class Silent:
    """An engine whose nodes say nothing by themselves; what is written to them is kept."""

    def __init__(self) -> None:
        self.opened: list[int] = []
        self.sent: list[dict[str, Any]] = []

    def open(self, node: str, argv: Sequence[str], errors: bool = False) -> int:
        self.opened.append(len(self.opened) + 1)
        return self.opened[-1]

    def write(self, conn: int, data: bytes) -> None:
        message = wire.Reader().feed(data.rstrip(b"\n"))
        if message is not None:
            self.sent.append(message)

    def start(self) -> None:
        raise AssertionError

    def stop(self, timeout: float = 5.0) -> None:
        raise AssertionError

    def close_input(self, conn: int) -> None:
        """Nothing is there to be told."""

    interrupt = kill = close_input

    def consumed(self, conn: int, size: int) -> None:
        """Nothing is read."""


class Crowd:
    """A collector with nodes that connect by one gate, over an engine that does nothing."""

    def __init__(self, nodes: int, at_once: int) -> None:
        self.engine = Silent()
        self.collector = Collector(self.engine, Options(watch=False), Timing())
        self.mono = 100.0
        for number in range(nodes):
            self.collector.add(Gated(f"n{number}", at_once), self.now)

    @property
    def now(self) -> Moment:
        return Moment(1.7e9 + self.mono, self.mono)

    def hello(self, conn: int) -> None:
        (line,) = wire.encode(HELLO)
        self.collector.handle(Lines(conn, [line.rstrip(b"\n")], len(line)), self.now)

    def states(self) -> list[str]:
        return [link.state for link in self.collector.links.values()]


def test_the_next_one_logs_in_as_soon_as_another_has() -> None:
    crowd = Crowd(nodes=100, at_once=8)
    assert len(crowd.engine.opened) == 8
    for count in range(1, 93):
        crowd.hello(count)
        crowd.mono += 0.001  # nobody waits for the next look at all of them
        crowd.collector.tick(crowd.now)
        assert len(crowd.engine.opened) == 8 + count
    crowd.collector.close(crowd.now)
    crowd.collector.tick(crowd.now)
    assert len(crowd.engine.opened) == 100


def test_who_waits_its_turn_does_not_start_any_more_once_all_is_closed() -> None:
    crowd = Crowd(nodes=10, at_once=2)
    crowd.collector.close(crowd.now)
    crowd.hello(1)
    crowd.mono += 1.0
    crowd.collector.tick(crowd.now)
    assert len(crowd.engine.opened) == 2


def test_no_node_is_blamed_for_the_time_in_which_nobody_listened() -> None:
    """As on a machine that was suspended, or has far too much to do."""
    crowd = Crowd(nodes=3, at_once=3)
    crowd.collector.tick(crowd.now)
    for conn in crowd.engine.opened:
        crowd.hello(conn)
    for _ in range(4):
        crowd.mono += 0.25
        crowd.collector.tick(crowd.now)
    assert [message["op"] for message in crowd.engine.sent].count("ping") == 3
    crowd.mono += 300.0
    crowd.collector.tick(crowd.now)
    assert crowd.states() == ["ready"] * 3
    for _ in range(80):
        crowd.mono += 0.25
        crowd.collector.tick(crowd.now)
    assert set(crowd.states()) == {"lost"}, "and what they did not say then counts"


def test_no_node_is_blamed_while_what_it_has_said_waits_to_be_read() -> None:
    crowd = Crowd(nodes=3, at_once=3)
    for conn in crowd.engine.opened:
        crowd.hello(conn)
    for _ in range(400):
        crowd.mono += 0.25
        crowd.collector.tick(crowd.now, behind=True)
    assert crowd.states() == ["ready"] * 3
    for _ in range(80):
        crowd.mono += 0.25
        crowd.collector.tick(crowd.now)
    assert set(crowd.states()) == {"lost"}
