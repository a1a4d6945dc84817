"""Sets of node states."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hangtop_core.model.snapshot import NodeState

OBSERVED: frozenset[NodeState] = frozenset({"ready", "slow"})
AWAY: frozenset[NodeState] = frozenset({"unreachable", "lost"})
FAILED: frozenset[NodeState] = frozenset({"unreachable", "denied", "no-python", "incompatible"})
"""The first attempt to observe the node failed."""
UNSEEN: frozenset[NodeState] = FAILED | {"lost"}
"""The node is not observed, or no longer."""
