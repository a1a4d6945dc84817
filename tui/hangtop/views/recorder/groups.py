"""Ranks grouped by node or by stack class, each group under a heading that folds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hangtop.terminal.spans import Line, line
from hangtop.views.common import last_seen_text, span, unheard
from hangtop.views.nodes.nodes import node_role
from hangtop.views.ranks.ranks import CALM, RankRow
from hangtop_core.model.node.states import OBSERVED
from hangtop_core.text.rank_sets import fold, names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.model.snapshot import Node, Snapshot

Grouping = Literal["", "node", "class"]
GROUPINGS: tuple[Grouping, ...] = ("", "node", "class")
OPEN_RANKS = 64
"""Number of ranks above which groups without problems start folded."""


@dataclass(frozen=True, slots=True)
class Group:
    """A heading, and the ranks under it."""

    key: str
    node: str | None
    """The node, when grouped by node."""
    rows: tuple[RankRow, ...]
    open: bool
    heading: Line


Entry = RankRow | Group


def grouped(
    snapshot: Snapshot,
    rows: Sequence[RankRow],
    by: Grouping,
    toggled: frozenset[str],
    now: float,
    *,
    whole: bool,
) -> list[Entry]:
    """Return rows under headings, in the order of each group's worst rank, or of its silence.

    `toggled` holds the keys of groups that the user folded or opened; `whole` opens all.
    """
    if not by:
        return list(rows)
    silent = _silent_nodes(snapshot) if by == "node" else {}
    members: dict[str, list[RankRow]] = {}
    for row in rows:
        members.setdefault(row.rank.node if by == "node" else row.stack, []).append(row)
    for name in silent:
        members.setdefault(name, [])

    def urgency(item: tuple[str, list[RankRow]]) -> int:
        return min([row.level for row in item[1]] + [1] * (item[0] in silent))

    nodes = {node.name: node for node in snapshot.nodes}
    entries: list[Entry] = []
    for name, ranks in sorted(members.items(), key=urgency):
        key = f"{by}:{name}"
        starts_open = len(rows) <= OPEN_RANKS or any(row.level < CALM for row in ranks)
        is_open = whole or starts_open != (key in toggled)
        title = _node(nodes.get(name), name, ranks, now) if by == "node" else _class(ranks)
        heading = line(_fold_sign(ranks, is_open=is_open), title)
        node = name if by == "node" else None
        entries.append(Group(key, node, tuple(ranks), is_open, heading))
        if is_open:
            entries += ranks
    return entries


def _silent_nodes(snapshot: Snapshot) -> dict[str, None]:
    """Return the names of nodes that are not observed, in the order of the snapshot."""
    return dict.fromkeys(node.name for node in snapshot.nodes if node.state not in OBSERVED)


def _fold_sign(rows: Sequence[RankRow], *, is_open: bool) -> str:
    if not rows:
        return "  "
    return "▾ " if is_open else "▸ "


def _node(node: Node | None, name: str, rows: Sequence[RankRow], now: float) -> Line:
    count = f"  {ranks_of(rows)}" if rows else "  no rank seen"
    head = line((name, "bold"), (count, "" if rows else "dim"), _culprit_mark(rows))
    if node is None or node.state == "ready":
        return head
    old = unheard([node], now).get(name)
    state = last_seen_text(*old) if old else f"{node.state} for {span(now - node.since)}"
    return line(head, (f"  {state}", node_role(node.state)), (f"  {node.reason or ''}", "dim"))


def _class(rows: Sequence[RankRow]) -> Line:
    first = rows[0]
    where = first.place if first.rank.sample and first.rank.sample.threads else "no stack"
    return line((ranks_of(rows), "bold"), f"  {where} ", (first.call, "code"), _culprit_mark(rows))


def ranks_of(rows: Sequence[RankRow]) -> str:
    """Return `rank 2`, `3 ranks 0-1,3`, `2 ranks 0-1, VLLM::EngineCore (pid 4711)`."""
    ranks = [row.rank for row in rows if row.rank.process.role == "rank"]
    labels = [row.rank.name for row in rows if row.rank.process.role != "rank"]
    if len(ranks) == 1:
        return ", ".join((ranks[0].name, *labels))
    counted = [f"{len(ranks)} ranks {fold(rank.rank for rank in ranks)}"] if ranks else []
    return ", ".join((*counted, *labels))


def _culprit_mark(rows: Sequence[RankRow]) -> Line:
    """Return the culprits of a group, which its heading shows also when folded."""
    guilty = [row.rank.rank for row in rows if not row.level]
    if not guilty:
        return line("")
    marker = "culprit" if len(guilty) == len(rows) else names(guilty)
    return line((f"  ◀ {marker}", "culprit"))
