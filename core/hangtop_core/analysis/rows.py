"""The merged tree as the lines that are visible: what a tree widget and plain text both draw."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from hangtop_core.model import Frame
from hangtop_core.rankset import fold

if TYPE_CHECKING:
    from collections.abc import Collection

    from hangtop_core.analysis.stacks import Merged, Node

JOIN_AT_LEAST = 4
"""Chains shorter than this are shown whole: joining them saves nothing."""


class Row(Struct, frozen=True):
    """One visible line of the tree, ready for a widget or for text."""

    key: str
    frame: Frame
    depth: int
    """Number of branchings above: chains are not indented."""
    more: tuple[bool, ...]
    """For every level of branching up to this row: whether more siblings follow."""
    first: bool
    """Whether the row begins a branch, and so carries its connector."""
    count: int
    share: float
    """Of the ranks that have a stack."""
    ranks: str
    """Folded rank set, empty where it is that of the row above."""
    since: float | None
    hidden: int
    """Library frames folded into this row."""
    joined: int
    """Frames left out between this row and the next one of the same ranks."""
    foldable: bool
    folded: bool
    fewest: bool
    """The smallest group among its siblings."""


def flatten(
    merged: Merged,
    folded: Collection[str] = (),
    *,
    join: bool = False,
    opened: Collection[str] = (),
) -> list[Row]:
    """The visible rows of a merged tree, from the top.

    Args:
        merged: the tree.
        folded: keys of rows whose branches are closed.
        join: leave out the middle of chains in which the ranks do not change.
        opened: keys of rows whose chain is shown whole all the same.
    """
    rows: list[Row] = []
    sampled = len({rank for root in merged.roots for rank in root.ranks}) or 1
    todo: list[tuple[Node, tuple[bool, ...], bool, bool, Node | None]] = []
    _push(todo, list(merged.roots), (), None)
    while todo:
        node, more, first, fewest, above = todo.pop()
        closed = node.key in folded
        last = _chain_end(node) if join and not closed and node.key not in opened else node
        joined, shown = _between(node, last)
        same = above is not None and above.ranks is node.ranks
        rows.append(
            Row(
                key=node.key,
                frame=node.frame,
                depth=len(more),
                more=more,
                first=first,
                count=len(node.ranks),
                share=len(node.ranks) / sampled,
                ranks="" if same else fold(node.ranks),
                since=node.since,
                hidden=node.hidden,
                joined=joined,
                foldable=bool(node.children),
                folded=closed and bool(node.children),
                fewest=fewest,
            )
        )
        if not closed:
            _push(todo, shown, more, node)
    return rows


def _push(
    todo: list[tuple[Node, tuple[bool, ...], bool, bool, Node | None]],
    children: list[Node],
    more: tuple[bool, ...],
    above: Node | None,
) -> None:
    """Put children on the stack of work, the first one on top."""
    if len(children) == 1 and not (above and above.ends):
        todo.append((children[0], more, False, False, above))
        return
    for index in range(len(children) - 1, -1, -1):
        follows = index < len(children) - 1
        fewest = index == 0 and len(children) > 1
        todo.append((children[index], (*more, follows), True, fewest, above))


def _chain_end(node: Node) -> Node:
    while len(node.children) == 1 and node.children[0].ranks is node.ranks:
        node = node.children[0]
    return node


def _between(node: Node, last: Node) -> tuple[int, list[Node]]:
    """How many frames joining leaves out after a node, and what is shown next."""
    length = 1
    at = node
    while at is not last:
        at = at.children[0]
        length += 1
    if length < JOIN_AT_LEAST:
        return 0, node.children
    return length - 2, [last]
