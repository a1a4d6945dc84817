"""State of one run of a shared command in the `router`, and of the children beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.attach.connect.channel import Pushed
from hangtop_core.attach.connect.engine import MAX_STDERR

if TYPE_CHECKING:
    from collections import deque

    from hangtop_core.attach.connect.channel import Channel, Order, Shared


class Complaints:
    """The last lines of a child's standard error, by node."""

    def __init__(self) -> None:
        self._lines: dict[str | None, bytes] = {}

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, node: str | None, line: bytes) -> None:
        """Keep a line; None as the node means all nodes."""
        self._lines[node] = (self._lines.get(node, b"") + line + b"\n")[-MAX_STDERR:]

    def about(self, node: str) -> bytes:
        """Return the lines about a node, and about all."""
        return self._lines.get(None, b"") + self._lines.get(node, b"")


class Run:
    """One run of a channel: its nodes gather, then it becomes a child."""

    shared: Shared
    """The shared command; set once the run is a child."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.since: float | None = None
        self.conn = 0
        """Connection of the child; 0 while there is none."""
        self.members: dict[str, int] = {}
        """Connections that are not over, by node."""
        self.ended: set[str] = set()
        """Nodes whose input was closed."""
        self.over: dict[str, tuple[int | None, float]] = {}
        """Nodes whose part has ended: with its status, and when their last output has arrived."""
        self.kill_at: float | None = None
        """When the child is killed, if it has not ended in order by then."""
        self.given_up = False
        """Whether an abandoned node has not ended: its unread data may fill all buffers."""
        self.writes: list[tuple[str, bytes | None]] = []
        self.waiting: dict[str, deque[bytes | None]] = {}
        """Data for nodes that wait for other data to be carried, in order."""
        self.record = 0
        """Number of that transfer in the log of commands; 0 when none runs."""
        self.complaints = Complaints()
        self.asides: set[int] = set()
        """Children that carry requests to its nodes beside it."""

    @property
    def has_input(self) -> bool:
        """Return whether its nodes can be written to."""
        return not isinstance(self.shared, Pushed)


class Aside(NamedTuple):
    """A child that carries requests to nodes of a run."""

    run: Run
    order: Order
    complaints: Complaints
    codes: dict[str, int | None]
    """Exit codes of the nodes where it has ended, if reported."""


class Carry(NamedTuple):
    """A child that carries data to all nodes of a run."""

    run: Run
    until: float
