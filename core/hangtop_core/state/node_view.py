"""What the store keeps of one node beside what it publishes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.state.devices import Devices

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hangtop_core.model.snapshot import Node
    from hangtop_core.state.tracked import Tracked

MAX_GONE_CHILDREN = 16
"""Children of one rank that left and are still listed."""


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

    def adopt(self) -> None:
        """Give every child to the rank it belongs to, those that left included, within bounds."""
        owners = {known.process.pid: known for known in self.gone}
        owners.update(self.live)
        for owner in owners.values():
            if owner.children:
                owner.children = {}
        gone: dict[int, int] = {}
        for child in (*self.live.values(), *reversed(self.gone)):
            process = child.process
            if process.rank_pid in (None, process.pid) or process.role in ("rank", "launcher"):
                continue
            parent = owners.get(process.rank_pid or 0)
            if parent is None or parent.process.start > process.start:
                continue
            gone[parent.process.pid] = gone.get(parent.process.pid, 0) + child.gone
            within = not child.gone or gone[parent.process.pid] <= MAX_GONE_CHILDREN
            if within and process.pid not in parent.children:
                parent.children[process.pid] = child
                parent.touch()
