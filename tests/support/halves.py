"""Jobs over nodes as torchrun starts them: two ranks on each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hangtop_core.model.snapshot import Node
from support.build import World
from support.situations import FUTEX, INIT, POLL

if TYPE_CHECKING:
    from hangtop_core.diagnosis import Verdict
    from support import situations


N1, N2, N3 = (
    Node(f"n{n}", "ready", hostname=f"n{n}.cluster", addresses=(f"10.0.0.{n}",)) for n in (1, 2, 3)
)


def world(*nodes: Node) -> World:
    """One of these nodes, without ranks."""
    made = World()
    made.nodes = {node.name: node for node in nodes or (N1, N2)}
    return made


def halves(
    into: World,
    *nodes: str,
    size: int = 4,
    stack: situations.Stack = INIT,
    told: dict[str, dict[str, str]] | None = None,
    first: dict[str, int] | None = None,
    **fields: Any,
) -> None:
    """Two ranks on each of some nodes, under torchrun; ``told`` changes environments by node."""
    for node in nodes:
        base = (first or {}).get(node, 2 * (int(node[1:]) - 1))
        for local in range(2):
            env = {
                "RANK": str(base + local),
                "LOCAL_RANK": str(local),
                "LOCAL_WORLD_SIZE": "2",
                "GROUP_RANK": str(base // 2),
                "GROUP_WORLD_SIZE": str(size // 2),
                "WORLD_SIZE": str(size),
                "MASTER_ADDR": "n1",
                "MASTER_PORT": "29500",
                **(told or {}).get(node, {}),
            }
            facts = POLL if stack is INIT else FUTEX
            process = {"env": env, "pid": 100 * int(node[1:]) + local, **fields}
            into.add(stack, facts, rank=base + local, node=node, process=process)


def culprits(verdict: Verdict) -> list[tuple[int | None, str]]:
    """Ranks and nodes that a verdict blames."""
    return [(one.rank, one.node) for one in verdict.culprits]
