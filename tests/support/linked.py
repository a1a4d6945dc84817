"""One link with a scripted probe and a clock of the test's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hangtop_core.attach.connect.link import Link
from hangtop_core.attach.connect.timing import Moment, Timing
from hangtop_core.attach.ways.local import LocalLauncher
from hangtop_core.attach.wire.messages import BadPieceError
from hangtop_probe.wire import wire

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hangtop_core.attach.connect.launcher import Launcher
    from hangtop_core.attach.wire.messages import Hello
    from hangtop_core.errors import HangtopError


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
