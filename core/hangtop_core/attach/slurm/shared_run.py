"""What the `router` knows of one run of a shared command, and of the children beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.attach.connect.channel import Pushed
from hangtop_core.attach.connect.engine import MAX_STDERR

if TYPE_CHECKING:
    from collections import deque

    from hangtop_core.attach.connect.channel import Channel, Order, Shared


class Complaints:
    """The last of what a child said on standard error, by node."""

    def __init__(self) -> None:
        self._lines: dict[str | None, bytes] = {}

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, node: str | None, line: bytes) -> None:
        """Keep a line; with None as the node when it is about all."""
        self._lines[node] = (self._lines.get(node, b"") + line + b"\n")[-MAX_STDERR:]

    def about(self, node: str) -> bytes:
        """Return what there is about a node, and about all."""
        return self._lines.get(None, b"") + self._lines.get(node, b"")


class Run:
    """One run of a channel: its nodes gather, then it is a child."""

    shared: Shared
    """Set once it is a child."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.since: float | None = None
        self.conn = 0
        """Of the child; 0 as long as there is none."""
        self.members: dict[str, int] = {}
        """Connections that are not over, by node."""
        self.ended: set[str] = set()
        """Nodes whose input was closed."""
        self.over: dict[str, tuple[int | None, float]] = {}
        """Nodes whose part has ended: with which status, and when their last words are in."""
        self.kill_at: float | None = None
        """When the child is killed, if it has not ended in order by then."""
        self.given_up = False
        """Whether a node was left that did not end: what it does not read may fill all buffers."""
        self.writes: list[tuple[str, bytes | None]] = []
        self.waiting: dict[str, deque[bytes | None]] = {}
        """What was written to nodes that wait for something to come by another way, in order."""
        self.record = 0
        """Number in the log of commands of what carries that; 0 when nothing runs."""
        self.complaints = Complaints()
        self.asides: set[int] = set()
        """Children that carry requests to its nodes beside it."""

    @property
    def has_input(self) -> bool:
        """Whether its nodes can be written to."""
        return not isinstance(self.shared, Pushed)


class Aside(NamedTuple):
    """A child that carries requests to nodes of a run."""

    run: Run
    order: Order
    complaints: Complaints
    codes: dict[str, int | None]
    """Of the nodes where it has ended, as far as it says so."""


class Carry(NamedTuple):
    """A child that brings something to all nodes of a run."""

    run: Run
    until: float
