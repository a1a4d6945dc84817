"""The head's own work on a played cluster, without pipes, threads or waiting: time is stepped."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.attach.connect.engine import Lines
from hangtop_core.attach.connect.launcher import ByHand, Wave
from hangtop_core.attach.connect.timing import Moment
from hangtop_core.collect.collector import Collector
from hangtop_core.judging.judging import Judge
from hangtop_core.model.updates import Options
from hangtop_core.session.schedule import Schedule
from hangtop_probe.wire import wire
from simulated.node import SimulatedNode
from simulated.story import Story
from support.large import EPOCH, HANG_AFTER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hangtop_core.diagnosis import Diagnosis

PICTURE_S = 0.3
"""Seconds of processor that a picture is taken to cost: as much as one of 8,192 ranks does."""


class _Launcher:
    """Reaches a node of the engine below."""

    channel, via, patience, by_hand = None, "played", 0.0, ByHand()
    wave = Wave("played", 1_000_000, 0.0)

    def __init__(self, node: str) -> None:
        self.node = node

    def argv(self) -> list[str]:
        return []

    def opening(self) -> bytes:
        return b""


class _Engine:
    """Lets simulated nodes answer what is written to them; what they say waits in `said`."""

    def __init__(self, nodes: Mapping[str, SimulatedNode]) -> None:
        self.nodes = nodes
        self.now = 0.0
        self.said: list[Lines] = []
        self._live: dict[int, tuple[SimulatedNode, wire.Reader]] = {}

    def open(self, node: str, argv: Sequence[str], errors: bool = False) -> int:
        conn = len(self._live) + 1
        self._live[conn] = (self.nodes[node], wire.Reader())
        self._say(conn, self.nodes[node].hello(self.now))
        return conn

    def _say(self, conn: int, message: dict[str, Any]) -> None:
        lines = [line.rstrip(b"\n") for line in wire.encode(message, message["id"])]
        self.said.append(Lines(conn, lines, sum(map(len, lines))))

    def write(self, conn: int, data: bytes) -> None:
        node, reader = self._live[conn]
        for line in wire.split_lines(data)[0]:
            if (message := reader.feed(line)) is not None:
                for said in node.answer(message, self.now):
                    self._say(conn, said)

    def consumed(self, conn: int, size: int) -> None:
        pass

    def pass_time(self, seconds: float) -> list[Lines]:
        """What nodes have said by then."""
        self.now += seconds
        for conn, (node, _) in self._live.items():
            if (piece := node.tick(self.now)) is not None:
                self._say(conn, piece)
        said, self.said = self.said, []
        return said


class Played:
    """A session's thread, turn by turn."""

    def __init__(self, nodes: int, **story: Any) -> None:
        """``story`` is as in `simulated.story`."""
        self.story = Story(nodes=nodes, hang_at=-1.0, **story)
        names = [self.story.name(number) for number in range(nodes)]
        self._nodes = {n: SimulatedNode(i, self.story, EPOCH) for i, n in enumerate(names)}
        self._engine = _Engine(self._nodes)
        options = Options(hang_after=HANG_AFTER)
        self.collector = Collector(self._engine, options)  # type: ignore[arg-type]
        self.judge, self.rhythm = Judge(diagnose, HANG_AFTER), Schedule(1.0)
        self.pictures = 0
        self.diagnosis: Diagnosis | None = None
        for name in names:
            self.collector.add(_Launcher(name), self._moment())  # type: ignore[arg-type]

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return self._engine.now

    def _moment(self) -> Moment:
        return Moment(EPOCH + self.now, 1000.0 + self.now)

    def change(self, **story: Any) -> None:
        """Let the story go on otherwise."""
        self.story = replace(self.story, **story)
        for node in self._nodes.values():
            node.story = self.story

    def run(self, seconds: float, head: Callable[[Callable[[], None]], Any] | None = None) -> None:
        """Pass so much time, a quarter of a second in each turn; ``head`` calls what the head does.

        What nodes do is not among that.
        """
        for _ in range(round(seconds * 4)):
            said = self._engine.pass_time(0.25)
            if head is None:
                self._turn(said)
            else:
                head(partial(self._turn, said))

    def _turn(self, said: Sequence[Lines]) -> None:
        """Handle what was said, do what is due, and make a picture when it is time."""
        now, collector = self._moment(), self.collector
        for lines in said:
            collector.handle(lines, now)
        collector.tick(now)
        rests = self.judge.settled and not collector.store.news
        due = self.rhythm.wait(now.mono, urgent=collector.urgent, rests=rests, behind=False)
        if due <= 0:
            collector.urgent = False
            snapshot = collector.store.publish(now.epoch)
            collector.rounds.look_closer(snapshot)
            found = self.judge.judge(snapshot)
            collector.rounds.read_logs(snapshot, found)
            self.rhythm.made(now.mono, now.mono, PICTURE_S)
            collector.arrivals.shown(now.mono)
            self.pictures += 1
            self.diagnosis = next(iter(found.values()))
