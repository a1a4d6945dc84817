"""Nodes with equal ladders as one group, and where a group differs from the largest one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from hangtop_core.analysis.ladder.rung import Ladder, Rung

if TYPE_CHECKING:
    from collections.abc import Iterable

PLACEHOLDER = "NODE"
"""What stands for the name of each node in the texts of a group."""


class Group(Struct, frozen=True):
    """Nodes on which every rung is the same."""

    nodes: tuple[str, ...]
    rungs: tuple[Rung, ...]
    """With details only where all nodes of the group share them."""
    keys: tuple[Rung, ...]
    """What makes them equal: the rungs without details and without the nodes' own names."""

    @property
    def failing(self) -> bool:
        """Whether hangtop cannot see ranks there."""
        return any(rung.fails for rung in self.rungs)

    def differences(self, other: Group) -> tuple[Rung, ...]:
        """Return the rungs that are not as in another group."""
        return tuple(
            rung for rung, key in zip(self.rungs, self.keys, strict=True) if key not in other.keys
        )


def fold(ladders: Iterable[Ladder]) -> tuple[Group, ...]:
    """Return the groups, the largest of those that work first, then by size."""
    found: dict[tuple[Rung, ...], list[Ladder]] = {}
    for ladder in ladders:
        found.setdefault(_keys(ladder), []).append(ladder)
    groups = [_group(keys, some) for keys, some in found.items()]
    return tuple(sorted(groups, key=lambda group: (group.failing, -len(group.nodes))))


def _group(keys: tuple[Rung, ...], ladders: list[Ladder]) -> Group:
    first, *others = ladders
    rungs = first.rungs
    if others:
        details = zip(*(ladder.rungs for ladder in ladders), strict=True)
        rungs = tuple(
            replace(key, detail=some[0].detail if len({one.detail for one in some}) == 1 else None)
            for key, some in zip(keys, details, strict=True)
        )
    return Group(tuple(ladder.node for ladder in ladders), rungs, keys)


def _keys(ladder: Ladder) -> tuple[Rung, ...]:
    own = re.compile(rf"(?<![\w.-]){re.escape(ladder.node)}(?![\w-])")
    return tuple(
        Rung(
            rung.name,
            rung.state,
            own.sub(PLACEHOLDER, rung.text),
            own.sub(PLACEHOLDER, rung.fix) if rung.fix is not None else None,
        )
        for rung in ladder.rungs
    )
