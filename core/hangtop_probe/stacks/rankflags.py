"""Find names that depend on the rank: `verbose = rank == 0`, `x = X() if main() else 0`.

A condition on such a name is a condition on the rank.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Dict, List, Optional, Set, Tuple

if TYPE_CHECKING:
    from .blocks import Statement

EXACT = "="
"""Prefix of a name that must match in full: `self.x`, and no other `x`."""
_MAX_STATEMENT = 400
_FLAG = re.compile(
    rb"\b(\w{3,})\s*=(?!=)\s*((?:(?!\bif\b)[^=)]|\([^()]*\))*rank[^=]*[!=]=\s*0\b)", re.I
)
"""An assignment or keyword argument that is true on the first rank."""
_ASKS = re.compile(
    rb"(?<!lora_)rank(?!s|ing|ed|er)[^=]*(?:[!=]=|>)\s*[\"']?\d|\bnot [\w.]*rank\b"
    rb"|^\s*[\w.]*rank(?:\(\))?\s*$|is_(?:\w+_)?(?:main|master|chief|leader|primary|root)"
    rb"|(?:main|master)_process|(?:global|rank)_?zero",
    re.I,
)
_CALL = rb"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
_EITHER = re.compile(
    rb"((?:\w+\.)*\w{2,})\s*=(?!=)\s*\(?\s*((?:[^=()]|" + _CALL + rb")+?)\s+if\s(.+?)\selse\s+(.*)"
)
"""A conditional expression assigned to a name: both values and the condition."""
_GIVEN = re.compile(rb"\s*([\w.]+(?:\s*,\s*[\w.]+)*)\s*[-+|]?=(?!=)\s*(.*)")
_TYPE = re.compile(rb"^(\s*[\w.]+)\s*:[^=(]+=(?!=)")
_NOTHING = re.compile(rb"(?:None|False|0|\[\]|\{\}|\(\))\s*(?:[,)].*)?$")
_SHARES = re.compile(rb"broadcast|bcast|scatter|gather|reduce")


def of(statements: List[Statement], lines: List[bytes]) -> Dict[bytes, bytes]:
    """Return the statement that makes a name depend on the rank, by name.

    This includes names that are nothing (`None`) except under a condition on the rank, unless they
    are also assigned elsewhere, or a rank may send the value to the others.
    """
    names = _Names()
    for statement in statements:
        text = b" ".join(line.strip() for line in lines[statement.first - 1 : statement.last])
        if len(text) <= _MAX_STATEMENT:
            names.read(statement, text)
    return names.flags()


class _Names:
    """The values that the statements of a file, read in order, assign to each name."""

    def __init__(self) -> None:
        self._flags: Dict[bytes, bytes] = {}
        self._made: Dict[bytes, bytes] = {}
        self._handed: List[Tuple[bytes, bytes]] = []
        self._nothing: Set[bytes] = set()
        self._other: Set[bytes] = set()
        self._under: List[Tuple[int, bytes]] = []

    def read(self, statement: Statement, text: bytes) -> None:
        flag = _FLAG.search(text)
        if flag:
            self._flags[flag[1]] = flag[0]
        self._enter(statement, text)
        if _SHARES.search(text):
            self._other.update(re.findall(rb"\w+", text))
        text = _TYPE.sub(rb"\1 =", text)
        given = _GIVEN.match(text)
        chosen = self._choose(text)
        if given and given[1] != chosen:
            self._give(given)

    def _enter(self, statement: Statement, text: bytes) -> None:
        """Track the conditions on the rank that a statement is under, or begins."""
        under, branch = self._under, statement.word in (b"else", b"elif")
        while under and statement.indent < under[-1][0] + (not branch):
            under.pop()
        if under and under[-1][0] == statement.indent:
            under[-1] = statement.indent, b""
        is_condition = statement.word in (b"if", b"elif")
        if is_condition and _ASKS.search(text.partition(b" ")[2].rstrip(b":")):
            under.append((statement.indent, text))

    def _choose(self, text: bytes) -> Optional[bytes]:
        """Return the name that a conditional expression on the rank assigns, or None."""
        either = _EITHER.search(text) if b" else " in text else None
        if either and _ASKS.search(either[3]) and any(map(_NOTHING.match, either.group(2, 4))):
            self._made[either[1]] = either[0]
            self._nothing.add(either[1])
            return either[1]
        return None

    def _give(self, given: "re.Match[bytes]") -> None:
        names = re.split(rb"\s*,\s*", given[1])
        if _NOTHING.match(given[2]):
            self._nothing.update(names)
        elif self._under and self._under[-1][1]:
            made = self._under[-1][1] + b" " + given[0].strip()
            self._made.update(dict.fromkeys(names, made))
        elif re.match(rb"\w+$", given[2]):
            self._handed.append((given[1], given[2]))
        else:
            self._other.update(names)

    def flags(self) -> Dict[bytes, bytes]:
        """Return the statements that make names depend on the rank, by name."""
        made, nothing = self._made, self._nothing
        for name, source in self._handed:
            if source in made and source in nothing:
                made[name] = made[source]
                nothing.add(name)
            else:
                self._other.add(name)
        for name in nothing:
            if name in made and self._other.isdisjoint((name, name.rpartition(b".")[2])):
                self._flags[EXACT.encode() + name] = made[name]
        return self._flags
