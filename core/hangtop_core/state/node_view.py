"""State of one node in the store, beside the parts that are published."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.state.devices import Devices

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hangtop_core.model.snapshot import Node
    from hangtop_core.state.tracked import Tracked

MAX_GONE_CHILDREN = 16
"""Maximum exited children of one rank that are still listed."""


class NodeView:
    """All state of one node."""

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
        """Seconds until the node's next piece, as announced with this one."""
        self.warm: set[int] = set()
        """Pids whose shares of a core are not all zero yet."""
        self.left_out: set[int] = set()
        """Pids that are ignored until the next connection: incomplete, or too many."""
        self.fresh = True
        """Whether the next piece is the first of a connection, and so a complete one."""
        self.changes = 0
        """Number of changes of the node so far."""

    def processes(self) -> Iterator[Tracked]:
        """Yield live processes, then exited ones."""
        yield from self.live.values()
        yield from self.gone

    def adopt(self) -> None:
        """Assign every child, exited ones within bounds, to the rank it belongs to."""
        owners = {tracked.process.pid: tracked for tracked in self.gone}
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
