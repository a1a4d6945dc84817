"""A collector with many nodes, whose connections a test plays; time comes from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hangtop_core.attach.connect.engine import Lines
from hangtop_core.attach.connect.launcher import Wave
from hangtop_core.attach.connect.timing import Moment, Timing
from hangtop_core.attach.ways.local import LocalLauncher
from hangtop_core.collect.collector import Collector
from hangtop_core.model.updates import Options
from hangtop_probe.wire import wire
from simulated.node import SimulatedNode
from support.large import EPOCH

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simulated.story import Story

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

    def pid(self, conn: int) -> None:
        """There is no child."""

    def consumed(self, conn: int, size: int) -> None:
        """Nothing is read."""


class Crowd:
    """A collector with nodes that connect by one gate, over an engine that does nothing."""

    def __init__(
        self,
        nodes: int,
        at_once: int,
        options: Options | None = None,
        timing: Timing | None = None,
    ) -> None:
        """They are not watched unless there are ``options``."""
        self.engine = Silent()
        self.collector = Collector(self.engine, options or Options(watch=False), timing or Timing())
        self.mono = 100.0
        self._at_once = at_once
        self.add(nodes)

    def add(self, nodes: int) -> None:
        """Let so many nodes come, behind the gate."""
        for number in range(nodes):
            self.collector.add(Gated(f"n{number}", self._at_once), self.now)

    @property
    def now(self) -> Moment:
        return Moment(1.7e9 + self.mono, self.mono)

    def hello(self, conn: int) -> None:
        self.say(conn, HELLO)

    def say(self, conn: int, message: dict[str, Any]) -> None:
        """Let a node say something."""
        self.hear(conn, wire.encode(message))

    def hear(self, conn: int, lines: list[bytes]) -> None:
        """Take lines of a node."""
        bare = [line.rstrip(b"\n") for line in lines]
        self.collector.handle(Lines(conn, bare, sum(map(len, lines))), self.now)

    def states(self) -> list[str]:
        return [link.state for link in self.collector.links.values()]


def first_words(story: Story) -> list[tuple[list[bytes], list[bytes]]]:
    """The lines of every node's hello, and those of the first table of what it runs."""
    words = []
    for number in range(story.nodes):
        node = SimulatedNode(number, story, EPOCH)
        hello = wire.encode(node.hello(0.0))
        assert not list(node.answer({"op": "watch", "id": 1, "interval": 1.0}, 0.0))
        table = node.tick(0.0)
        assert table is not None
        words.append((hello, wire.encode(table)))
    return words
