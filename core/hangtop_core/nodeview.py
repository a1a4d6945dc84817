"""What the store keeps of one node beside what it publishes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.devices import Devices

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hangtop_core.model import Node
    from hangtop_core.tracked import Tracked


class NodeView:
    """Everything known of one node."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.devices = Devices()
        self.live: dict[int, Tracked] = {}
        self.gone: list[Tracked] = []
        self.strings: dict[int, str] = {}
        self.skew = 0.0
        self.same_clock = False
        self.at: float | None = None
        """Time of the newest piece, on the head's clock."""
        self.pause = 0.0
        """Seconds for which it says nothing, as it has told with that."""
        self.warm: set[int] = set()
        """Pids whose shares of a core are not all zero yet."""
        self.left_out: set[int] = set()
        """Pids that were not taken, until the next connection: not whole, or too many."""
        self.fresh = True
        """Whether the next piece is the first of a connection, and so a whole one."""
        self.told = 0
        """How often something new was told of it."""

    def processes(self) -> Iterator[Tracked]:
        """Those that run, then those that left."""
        yield from self.live.values()
        yield from self.gone
