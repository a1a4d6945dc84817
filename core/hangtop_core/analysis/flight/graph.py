"""Components of a graph of waits, and what leads to each of its ends."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hangtop_core.analysis.flight.waits import Node


class Reach(NamedTuple):
    """From where an end can be reached."""

    ranks: tuple[int, ...]
    hops: int
    """The longest shortest way, counted in operations."""


class Backwards:
    """The edges of a graph, followed back; what leads to the same vertices is worked out once."""

    def __init__(self, edges: Mapping[Node, Sequence[Node]]) -> None:
        self._back: dict[Node, list[Node]] = defaultdict(list)
        for node, following in edges.items():
            for other in following:
                self._back[other].append(node)
        self._known: dict[frozenset[Node], Reach] = {}

    def is_awaited(self, node: Node) -> bool:
        """Whether anything leads to a vertex."""
        return bool(self._back.get(node))

    def reach(self, end: Sequence[Node]) -> Reach:
        """Return from where an end can be reached, which nothing leads on from."""
        inside = set(end)
        before = frozenset(
            other for node in end for other in self._back.get(node, ()) if other not in inside
        )
        if before not in self._known:
            self._known[before] = self._walk(before)
        return self._known[before]

    def _walk(self, before: frozenset[Node]) -> Reach:
        seen = {node: int(node.kind != "rank") for node in before}
        edge = list(before)
        while edge:
            following = []
            for node in edge:
                for other in self._back.get(node, ()):
                    if other not in seen:
                        seen[other] = seen[node] + (other.kind != "rank")
                        following.append(other)
            edge = following
        ranks = sorted(node.source for node in seen if node.kind == "rank")
        return Reach(tuple(ranks), max(seen.values(), default=0))


def components(edges: Mapping[Node, Sequence[Node]]) -> dict[Node, int]:
    """Strongly connected components (Tarjan, without recursion), numbered."""
    index: dict[Node, int] = {}
    low: dict[Node, int] = {}
    component: dict[Node, int] = {}
    stack: list[Node] = []
    for start in edges:
        if start in index:
            continue
        work = [(start, iter(edges[start]))]
        index[start] = low[start] = len(index)
        stack.append(start)
        while work:
            node, following = work[-1]
            for other in following:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    work.append((other, iter(edges.get(other, ()))))
                    break
                if other not in component:
                    low[node] = min(low[node], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    number = len(component)
                    while node not in component:
                        component[stack.pop()] = number
    return component
