"""What happens to the fleet, and when: the same for the process that plays it and for who asks."""

from __future__ import annotations

from msgspec import Struct


class Story(Struct, frozen=True):
    """A job on many nodes, and what goes wrong there. Times are seconds since the start."""

    nodes: int = 4
    ranks: int = 8
    """On each node."""
    hang_at: float = 0.0
    """From then on no rank runs any more; below 0 they never stop."""
    culprit: int = 3
    """The rank that does not come to the collective."""
    churn: float = 1.0
    """Share of the ranks whose meters move in a second, while they run."""
    stacks: int = 16
    """Different stacks that running ranks are found with; a rank that ran has another one."""
    slow: tuple[int, ...] = ()
    """Nodes that answer late."""
    slow_s: float = 2.0
    flapping: tuple[int, ...] = ()
    """Nodes that lose their connection again and again."""
    flap_s: float = 5.0
    env: dict[str, str] = {}
    """Variables of all ranks besides, or instead."""
    dead: tuple[int, ...] = ()
    """Nodes that never say anything."""

    @property
    def world(self) -> int:
        """World size."""
        return self.nodes * self.ranks

    def name(self, number: int) -> str:
        """Name of a node."""
        return f"node{number:04d}"
