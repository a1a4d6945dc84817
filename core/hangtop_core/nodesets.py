"""Many node names as people write them: ``gpu[01-16]``, by ClusterShell."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def fold(names: Iterable[str]) -> str:
    """Return ``gpu[01-16]`` for the names of many nodes, ``""`` for none.

    Names that ClusterShell cannot read as such are joined by commas.
    """
    return _fold(tuple(names))


@lru_cache(maxsize=64)
def _fold(names: tuple[str, ...]) -> str:
    """A thousand names take 50 ms, and screens ask for the same ones every second."""
    if len(names) < 2:
        return "".join(names)
    from ClusterShell.NodeSet import NodeSet, NodeSetException

    try:
        return str(NodeSet.fromlist(names))
    except NodeSetException:
        return ",".join(names)
