"""From failing pairs of nodes to their common cause: a node, or only the pair."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from hangtop_core.nettest.facts import Pair

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hangtop_core.nettest.facts import Facts

What = Literal["all", "into", "from", "both", "pair", "some"]
MAX_PAIRS = 4
"""Maximum number of pairs that are reported one by one; more pairs are reported together."""


class Culprit(Struct, frozen=True):
    """The culprit of some failing pairs.

    `what`: no node reaches any other (all); none reaches the node (into); the node reaches none
    (from); both; only this pair, one way or both ways; or many pairs without a common node (some),
    the nodes with the most of them first.
    """

    what: What
    nodes: tuple[str, ...]
    pairs: tuple[Pair, ...]


def of_kind(facts: Facts, kind: str) -> list[Culprit]:
    """Explain the failing connections of one kind."""
    connections = [connection for connection in facts.ways if connection.kind == kind]
    tested = [(connection.source, connection.target) for connection in connections]
    return fold(
        tested,
        [(connection.source, connection.target) for connection in connections if not connection.ok],
    )


def fold(tested: Iterable[Pair], failing: Iterable[Pair]) -> list[Culprit]:
    """Explain failing pairs (from, to) by as few nodes as possible; the remaining ones stay pairs.

    A node is guilty in one direction if it fails with all others in it, and at least two others are
    not guilty of the same: with only one other, it could be either.
    """
    bad = set(failing)
    if not bad:
        return []
    good = set(tested) - bad
    nodes = {node for pair in (*good, *bad) for node in pair}
    if not good and len(nodes) > 2:
        return [Culprit("all", tuple(sorted(nodes)), tuple(sorted(bad)))]
    into, out = _guilty_nodes(bad, good)
    by_node, left = _by_node(bad, into, out)
    return [*by_node, *_by_pair(left)]


def _guilty_nodes(bad: set[Pair], good: set[Pair]) -> tuple[set[str], set[str]]:
    """Return the nodes that none reaches, and the nodes that reach none."""
    into = _guilty(bad, good, 1)
    out = _guilty({pair for pair in bad if pair[1] not in into}, good, 0)
    # A node that fails with all others both ways explains the other direction, too.
    senders = {source for source, _ in bad} - {source for source, _ in good}
    return into, out | (into & senders)


def _by_node(bad: set[Pair], into: set[str], out: set[str]) -> tuple[list[Culprit], set[Pair]]:
    """Return the guilty nodes with their pairs, and the remaining pairs."""
    culprits = []
    left = set(bad)
    for node in sorted(into | out):
        received = {pair for pair in left if pair[1] == node} if node in into else set()
        sent = {pair for pair in left if pair[0] == node} if node in out else set()
        pairs = received | sent
        left -= pairs
        culprits.append(Culprit(_direction(node, into, out), (node,), tuple(sorted(pairs))))
    return culprits, left


def _direction(node: str, into: set[str], out: set[str]) -> What:
    if node in into and node in out:
        return "both"
    return "into" if node in into else "from"


def _by_pair(left: set[Pair]) -> list[Culprit]:
    """Return each pair, both ways as one; beyond `MAX_PAIRS` all of them together."""
    pairs = {(min(pair), max(pair)) for pair in left}
    if len(pairs) > MAX_PAIRS:
        counts = Counter(node for pair in left for node in pair)
        worst_first = sorted(counts, key=lambda node: (-counts[node], node))
        return [Culprit("some", tuple(worst_first), tuple(sorted(left)))]
    culprits = []
    left = set(left)
    while left:
        first = min(left)
        both = {first, (first[1], first[0])} & left
        left -= both
        culprits.append(Culprit("pair", first, tuple(sorted(both))))
    return culprits


def _guilty(bad: set[Pair], good: set[Pair], end: int) -> set[str]:
    """Return nodes all of whose pairs fail at one end, the one with the most pairs first."""
    guilty: set[str] = set()
    left = set(bad)
    fine = {pair[end] for pair in good}
    while left:
        counts = Counter(pair[end] for pair in left)
        whole = {node: count for node, count in counts.items() if count >= 2 and node not in fine}
        if not whole:
            return guilty
        worst = max(sorted(whole), key=lambda node: whole[node])
        guilty.add(worst)
        left = {pair for pair in left if worst not in pair}
    return guilty
