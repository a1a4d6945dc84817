"""The table of nodes: state, time in it, ranks on the node, and problems."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hangtop.terminal.columns import Column
from hangtop.terminal.spans import Line, counted, line
from hangtop.views.common import ODD_STATES, silence, span
from hangtop.views.verdict.judged import cause_of, culprits
from hangtop_core.analysis.gpus import troubles
from hangtop_core.model.node.states import OBSERVED
from hangtop_core.text import node_sets
from hangtop_core.text.clean import plural, size
from hangtop_core.text.rank_sets import fold

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hangtop_core.diagnosis import Diagnosis
    from hangtop_core.model.snapshot import Job, Node, Rank, Snapshot

_NUMBER = re.compile(r"\d+(\.\d+)?")
NODE_ROLES = {"ready": "good", "connecting": "info", "slow": "warn"}
"""Roles of the good states; all other states are bad."""
NEEDED = frozenset({"py-spy", "ptrace"})
"""Capabilities without which the ranks of a node cannot be diagnosed."""


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node, or several equal nodes, with the worst of their times and loads."""

    key: str
    nodes: tuple[Node, ...]
    name: str
    state: str
    lasting: float
    """Seconds in this state."""
    quiet: float | None
    """Seconds since the node was last heard from; None when it never was."""
    ranks: tuple[int, ...]
    trouble: str
    trouble_role: str
    reason: str
    reason_role: str
    level: int
    """Severity: 0 needs a person, 1 may recover on its own, 2 is healthy."""

    @property
    def node(self) -> Node:
        """The node, or the first of several."""
        return self.nodes[0]

    def worst(self, name: str, *, least: bool = False) -> float | None:
        """Return the largest, or with `least` the smallest, known value of a field of the nodes."""
        values = [v for node in self.nodes if (v := getattr(node, name)) is not None]
        return (min if least else max)(values) if values else None

    @property
    def load(self) -> float | None:
        """Load average of the last minute per CPU."""
        loads = [node.load1 / (node.cpus or 1) for node in self.nodes if node.load1 is not None]
        return max(loads) if loads else None


def node_role(state: str) -> str:
    """Return the role of a node's state."""
    return NODE_ROLES.get(state, "bad")


def counts(nodes: Sequence[Node]) -> Line:
    """Return `14 ready 1 slow 1 lost`."""
    return counted((node.state for node in nodes), node_role)


def _kind(reason: str) -> str:
    """Return a reason without its numbers, which differ between nodes and seconds."""
    return _NUMBER.sub("#", reason)


def alike(nodes: Iterable[Node]) -> list[tuple[Node, ...]]:
    """Group nodes that are in the same state for the same reason."""
    groups: dict[tuple[str, str], list[Node]] = {}
    for node in nodes:
        groups.setdefault((node.state, _kind(node.cause)), []).append(node)
    return [tuple(group) for group in groups.values()]


def node_rows(
    snapshot: Snapshot, job: Job | None, diagnosis: Diagnosis | None, now: float, *, folded: bool
) -> list[NodeRow]:
    """Return rows of all nodes, those that need a person first; with `folded` equal ones joined."""
    placed: dict[str, list[Rank]] = {}
    for rank in job.ranks if job else ():
        placed.setdefault(rank.node, []).append(rank)
    blamed = culprits(diagnosis)
    victims = frozenset(diagnosis.verdicts[0].victims) if diagnosis and diagnosis.verdicts else ()
    rows = [
        _row(node, placed.get(node.name, []), blamed, frozenset(victims), now)
        for node in snapshot.nodes
    ]
    if folded:
        rows = _folded(rows)
    rows.sort(key=lambda row: row.level)
    return rows


def _row(
    node: Node,
    ranks: Sequence[Rank],
    blamed: dict[tuple[str, int | None], str],
    victims: frozenset[int],
    now: float,
) -> NodeRow:
    trouble, role, guilty = _trouble(ranks, blamed, victims)
    lacking = _lacking(node)
    reason, reason_role = _reason(node, lacking)
    level = 2
    if guilty or node.state not in (*OBSERVED, "connecting"):
        level = 0
    elif node.state != "ready" or lacking or role == "bad":
        level = 1
    quiet = silence(node, now)
    if quiet is None and node.last_seen is not None:
        quiet = 0.0  # it responds
    return NodeRow(
        key=node.name,
        nodes=(node,),
        name=node.name,
        state=node.state,
        lasting=max(now - node.since, 0.0) if node.since else 0.0,
        quiet=quiet,
        ranks=tuple(sorted(rank.rank for rank in ranks)),
        trouble=trouble,
        trouble_role=role,
        reason=reason,
        reason_role=reason_role,
        level=level,
    )


def _reason(node: Node, lacking: str) -> tuple[str, str]:
    """Return why a node is in its state, or else its missing capabilities, and the role."""
    if node.reason:
        return node.reason, node_role(node.state)
    if lacking:
        return lacking, "warn"
    if " (" in (node.via or ""):
        return f"by {node.via}", "dim"  # without the reason why better connections failed
    return "", node_role(node.state)


def _lacking(node: Node) -> str:
    """Return the needed capabilities that cannot be used on a node."""
    facts = ((name, node.capabilities.get(name)) for name in sorted(NEEDED))
    return ", ".join(
        f"{name}: {fact.why or 'not usable'}" for name, fact in facts if fact and not fact.ok
    )


def _trouble(
    ranks: Sequence[Rank], blamed: dict[tuple[str, int | None], str], victims: frozenset[int]
) -> tuple[str, str, bool]:
    """Return the problem of a node's ranks, its role, and whether one of them is a culprit."""
    guilty = sum(cause_of(blamed, rank) is not None for rank in ranks)
    states = Counter(rank.state for rank in ranks if rank.state in ODD_STATES)
    parts = [f"{count} {state}" for state, count in states.most_common(2)]
    if absent := _absent(ranks):
        parts.append(f"{absent} missing")
    if guilty:
        return ", ".join([f"◀ {plural(guilty, 'culprit')}", *parts]), "culprit", True
    if parts:
        return ", ".join(parts), "bad", False
    waiting = sum(rank.rank in victims for rank in ranks)
    if waiting:
        return "all wait" if waiting == len(ranks) else f"{waiting} wait", "victim", False
    return "", "", False


def _absent(ranks: Sequence[Rank]) -> int:
    """Return how many ranks are missing on a node, by the launcher's LOCAL_WORLD_SIZE."""
    variables = {rank.process.env.get("LOCAL_WORLD_SIZE", "") for rank in ranks}
    sizes = [int(text) for text in variables if text.isdecimal() and len(text) < 6]
    return max(max(sizes, default=0) - len(ranks), 0)


def _folded(rows: Sequence[NodeRow]) -> list[NodeRow]:
    groups: dict[tuple[object, ...], list[NodeRow]] = {}
    for row in rows:
        node = row.node
        trouble = "" if row.trouble_role == "victim" else row.trouble
        reason = _kind(node.cause or row.reason)
        same = (row.state, reason, trouble, row.level, bool(row.ranks))
        groups.setdefault((*same, node.python, node.arch, node.user, node.cpus), []).append(row)
    return [_joined(group) for group in groups.values()]


def _joined(rows: Sequence[NodeRow]) -> NodeRow:
    first = rows[0]
    if len(rows) == 1:
        return first
    quiet = [row.quiet for row in rows if row.quiet is not None]
    same = len({row.trouble for row in rows}) == 1
    return NodeRow(
        key=f"{first.key}+",
        nodes=tuple(row.node for row in rows),
        name=node_sets.fold(row.name for row in rows),
        state=first.state,
        lasting=max(row.lasting for row in rows),
        quiet=max(quiet) if quiet else None,
        ranks=tuple(sorted(rank for row in rows for rank in row.ranks)),
        trouble=f"each: {first.trouble}" if same and first.trouble else "",
        trouble_role=first.trouble_role,
        reason=first.node.cause or first.reason,
        reason_role=first.reason_role,
        level=first.level,
    )


def seen_ago(row: NodeRow) -> str:
    """Return when the node was last heard from: `now`, `43 s ago`, `never`."""
    if row.quiet is None:
        return "never"
    return "now" if row.quiet < 1.5 else f"{span(row.quiet)} ago"


def _latency(row: NodeRow) -> Line:
    seconds = row.worst("latency_s")
    if seconds is None:
        return line(("-", "dim"))
    number = f"{seconds * 1000:.{0 if seconds >= 0.00995 else 1}f}"
    return line((f"{number} ms" if seconds < 9.995 else span(seconds), _old(row)))


def _load(row: NodeRow) -> Line:
    loads = [node for node in row.nodes if node.load1 is not None]
    if not loads:
        return line(("-", "dim"))
    node = max(loads, key=lambda candidate: (candidate.load1 or 0.0) / (candidate.cpus or 1))
    high = (node.load1 or 0.0) > 2 * (node.cpus or 1)
    return line((f"{node.load1:.1f}/{node.cpus or '?'}", "warn" if high else _old(row)))


def via(row: NodeRow) -> str:
    """Return the transport of the node, without the reason why other transports failed."""
    return (row.node.via or "").partition(" (")[0]


def _memory(row: NodeRow) -> Line:
    free, total = row.worst("memory_available", least=True), row.worst("memory_total")
    if free is None:
        return line(("-", "dim"))
    low = total is not None and free < total * 0.05
    return line((size(free), "bad" if low else _old(row)))


def _gpus(row: NodeRow) -> Line:
    """Return the number of GPUs, and how many of them have a problem."""
    gpus = [gpu for node in row.nodes for gpu in node.gpus]
    wrong = sum(bool(troubles(gpu)) for gpu in gpus)
    if wrong:
        return line((f"{wrong} of {len(gpus)} bad", "bad"))
    return line((str(len(gpus)), _old(row)) if gpus else ("-", "dim"))


def _old(row: NodeRow) -> str:
    """Return the role for data of a silent node, which may be out of date."""
    return "dim" if row.quiet else ""


NODE_COLUMNS: tuple[Column[NodeRow], ...] = (
    Column(
        "node",
        "NODE",
        lambda row: line((row.name, "bold")),
        lambda row: row.name,
        minimum=6,
        maximum=24,
    ),
    Column(
        "state",
        "STATE",
        lambda row: line((row.state, node_role(row.state))),
        lambda row: row.state,
        minimum=5,
        maximum=12,
    ),
    Column(
        "for", "FOR", lambda row: line(span(row.lasting)), lambda row: row.lasting,
        align="right", minimum=5, drop=5,
    ),
    Column(
        "seen",
        "SEEN",
        lambda row: line((seen_ago(row), "warn" if row.quiet and row.quiet >= 1.5 else "")),
        lambda row: float("inf") if row.quiet is None else row.quiet,
        align="right",
        minimum=5,
        maximum=14,
        drop=1,
    ),
    Column(
        "latency", "LATENCY", _latency, lambda row: row.worst("latency_s") or 0.0,
        align="right", drop=7,
    ),
    Column(
        "ranks",
        "RANKS",
        lambda row: line((fold(row.ranks) or "-", "" if row.ranks else "dim")),
        lambda row: (len(row.ranks), row.ranks),
        minimum=5,
        maximum=14,
        drop=4,
    ),
    Column(
        "trouble",
        "OF THEM",
        lambda row: line((row.trouble, row.trouble_role)),
        lambda row: (row.trouble_role, row.trouble),
        maximum=24,
        optional=True,
        drop=3,
    ),
    Column("gpus", "GPUS", _gpus, lambda row: sum(len(node.gpus) for node in row.nodes),
        align="right", drop=9,
    ),
    Column("load", "LOAD", _load, lambda row: row.load or 0.0, align="right", drop=6),
    Column(
        "memory", "MEM FREE", _memory, lambda row: row.worst("memory_available", least=True) or 0.0,
        align="right", maximum=10, drop=8,
    ),
    Column(
        "via",
        "VIA",
        lambda row: line((via(row), "dim")),
        via,
        maximum=12,
        optional=True,
        drop=10,
    ),
    Column(
        "reason",
        "REASON",
        lambda row: line((row.reason, row.reason_role)),
        lambda row: row.reason,
        minimum=18,
        maximum=60,
        flex=True,
        optional=True,
        drop=2,
    ),
)  # fmt: skip
