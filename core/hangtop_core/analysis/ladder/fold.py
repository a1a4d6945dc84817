"""Nodes with equal ladders as one group, and where a group differs from the largest one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct

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

    @property
    def failing(self) -> bool:
        """Whether hangtop cannot see ranks there."""
        return any(rung.fails for rung in self.rungs)

    def differences(self, other: Group) -> tuple[Rung, ...]:
        """Return the rungs that are not as in another group."""
        same = {(rung.name, rung.state, rung.text) for rung in other.rungs}
        return tuple(rung for rung in self.rungs if (rung.name, rung.state, rung.text) not in same)


def fold(ladders: Iterable[Ladder]) -> tuple[Group, ...]:
    """Return the groups, the largest of those that work first, then by size."""
    found: dict[tuple[object, ...], list[Ladder]] = {}
    for ladder in ladders:
        found.setdefault(tuple(map(_key, _named(ladder))), []).append(ladder)
    groups = [_group(some) for some in found.values()]
    return tuple(sorted(groups, key=lambda group: (group.failing, -len(group.nodes))))


def _key(rung: Rung) -> tuple[object, ...]:
    return rung.name, rung.state, rung.text, rung.fix


def _group(ladders: list[Ladder]) -> Group:
    first, *others = ladders
    if not others:
        return Group((first.node,), first.rungs)
    rungs = []
    for index, rung in enumerate(_named(first)):
        shared = all(other.rungs[index].detail == rung.detail for other in others)
        detail = rung.detail if shared else None
        rungs.append(Rung(rung.name, rung.state, rung.text, rung.fix, detail))
    return Group(tuple(ladder.node for ladder in ladders), tuple(rungs))


def _named(ladder: Ladder) -> list[Rung]:
    """The rungs with the node's own name taken out of their texts."""
    own = re.compile(rf"(?<![\w.-]){re.escape(ladder.node)}(?![\w-])")
    return [
        Rung(
            rung.name,
            rung.state,
            own.sub(PLACEHOLDER, rung.text),
            own.sub(PLACEHOLDER, rung.fix) if rung.fix is not None else None,
            rung.detail,
        )
        for rung in ladder.rungs
    ]
