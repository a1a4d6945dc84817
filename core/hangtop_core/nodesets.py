"""Many node names as people write them: ``gpu[01-16]``, by ClusterShell.

Only its notation is used here, nothing of it that looks up groups or reaches a node.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from hangtop_core.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterable


def fold(names: Iterable[str]) -> str:
    """Return ``gpu[01-16]`` for a set of node names, cleaned; ``""`` for none.

    Names that ClusterShell cannot read as such are joined by commas.
    """
    return _fold(tuple(sorted({clean(name) for name in names})))


@lru_cache(maxsize=64)
def _fold(names: tuple[str, ...]) -> str:
    """A thousand names take 50 ms, and screens ask for the same ones every second."""
    if len(names) < 2:
        return "".join(names)
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

    try:
        return str(NodeSet.fromlist(names, resolver=RESOLVER_NOGROUP))
    except NodeSetException:
        return ",".join(names)


MAX_NAMES = 20_000
_BRACKETS = re.compile(r"\[([^\]]*)")
_RANGES = re.compile(r"[0-9,/-]*")
_SPAN = re.compile(r"([0-9]+)-([0-9]+)")
_DIGITS = 18


def is_bounded(text: str, most: int) -> bool:
    """Whether the ranges of a set are written in plain digits, and of ``most`` numbers at most.

    ClusterShell makes all numbers of a range as soon as it has read it, and takes for one what
    Python does: `99_999_999`, ` 99999999`, digits of other scripts.
    """
    inside = _BRACKETS.findall(text)
    if not all(map(_RANGES.fullmatch, inside)):
        return False
    spans = _SPAN.findall(" ".join(inside))
    if any(len(last) > _DIGITS for _, last in spans):
        return False
    return sum(int(last) - int(first[-_DIGITS:]) for first, last in spans) <= most


def unfold(text: str) -> list[str]:
    """Return the names of a set such as ``gpu[01-16]``; none where it cannot be read as one."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

    if not is_bounded(text, MAX_NAMES):
        return []
    try:
        found = NodeSet(text, resolver=RESOLVER_NOGROUP)
        return [str(name) for name in found] if len(found) <= MAX_NAMES else []
    except NodeSetException:
        return []
