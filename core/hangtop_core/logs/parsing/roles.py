"""Labels of torchrun whose role is a node's name without a colon: `[gpu010]:` is gpu01's rank 0.

torchrun writes the local rank right behind the role (`--role $(hostname -s)`), so a name that ends
in digits runs into it. All labels of a file together show where a name ends: local ranks begin at 0
without gaps. Where that fails, the whole label stands for the printer.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

MAX_LABELS = 100_000
_LABEL = re.compile(
    r"(?:\S{1,300}: |\[pod/[^\]\s]{1,300}\] )?\[(?![\d.:]+\])([^\[\]\s]{1,120}?)(\d{1,7})\]:"
    r"(?:\[rank(\d{1,7})\]:)?"
)
_HOST = re.compile(r"  host +: (\S{1,255})")
_TEN = frozenset(range(10))
_NO_NODE = frozenset({"rank", "default"})
"""Words before a number that torch itself writes, which name no node."""


class Split(NamedTuple):
    """A label taken apart."""

    role: str
    local: int | None
    """None where it cannot be separated from the name."""
    node: str | None


class Roles:
    """The ends of the names in a file's labels."""

    def __init__(self, lines: Sequence[str]) -> None:
        tails, agreed = _digits_by_role(lines)
        named = _named(lines, tails)
        whole = {role for role, digits in tails.items() if agreed.get(role) or _is_whole(digits)}
        whole -= named
        self._wide: dict[str, frozenset[str]] = {
            role: _wide(digits)
            for role, digits in tails.items()
            if role not in whole and (role in named or _is_node(digits))
        }
        """By the text before the digits: nodes with more than ten ranks."""
        begun = {role for role in whole if "0" in tails[role]}
        self._nodes = begun if len(begun) + len(self._wide) > 1 else set()
        """Roles that distinguish launchers, and so stand for nodes."""
        self._unclear = tails.keys() - whole - self._wide.keys()

    def split(self, role: str, digits: str) -> Split:
        """Split a label that was cut before its last digits into role, local rank and node."""
        if role in self._unclear:
            return Split(role + digits, None, role + digits)
        wide = self._wide.get(role)
        if wide is None or len(digits) < 2:
            return Split(role, int(digits), role if role in self._nodes else None)
        size = 2 if digits[:-2] in wide and digits[-2] == "1" and len(digits) > 2 else 1
        node = role + digits[:-size]
        return Split(node + ":", int(digits[-size:]), node)


def _digits_by_role(lines: Iterable[str]) -> tuple[dict[str, set[str]], dict[str, bool]]:
    """Return the digits behind each role, and whether torch's own ranks equal them."""
    tails: dict[str, set[str]] = defaultdict(set)
    agreed: dict[str, bool] = {}
    for role, digits, rank in _labels(lines):
        if not role.endswith(":") and role not in _NO_NODE:
            tails[role].add(digits)
            if rank is not None:
                agreed[role] = agreed.get(role, True) and int(rank) == int(digits)
    return tails, agreed


def _labels(lines: Iterable[str]) -> Iterable[tuple[str, str, str | None]]:
    """Return the different labels of some lines: role, digits, and torch's own rank behind them."""
    labels: dict[tuple[str, str, str | None], None] = {}
    for line in lines:
        match = _LABEL.match(line)
        if match is not None and len(labels) < MAX_LABELS:
            labels[match[1], match[2], match[3]] = None
    return labels


def _named(lines: Iterable[str], tails: Mapping[str, Iterable[str]]) -> set[str]:
    """Return the roles whose node a torchrun report names."""
    hosts = {match[1].partition(".")[0] for match in map(_HOST.match, lines) if match is not None}
    return {role for role, digits in tails.items() if any(role + t[:-1] in hosts for t in digits)}


def _is_whole(tails: Collection[str]) -> bool:
    """Whether the digits are local ranks: a single digit contains no part of a name."""
    return any(len(tail) == 1 for tail in tails)


def _is_node(tails: Collection[str]) -> bool:
    """Whether the last digits are local ranks: they begin at 0 without gaps."""
    local = {int(tail[-1]) for tail in tails}
    return local == set(range(len(local)))


def _wide(tails: Collection[str]) -> frozenset[str]:
    """Return the digits of nodes with over ten ranks, whose local ranks have two digits from 10."""
    local: dict[str, set[int]] = defaultdict(set)
    for tail in tails:
        local[tail[:-1]].add(int(tail[-1]))
    more = {name: local[f"{name}1"] for name in local if f"{name}1" in local}
    return frozenset(name for name in more if local[name] == _TEN and more[name] != _TEN)
