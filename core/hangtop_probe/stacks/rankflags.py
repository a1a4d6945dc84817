"""What a program keeps of the rank under a name: `verbose = rank == 0`, `x = X() if main() else 0`.

A condition on such a name is one on the rank.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Dict, List, Set, Tuple

if TYPE_CHECKING:
    from .blocks import Statement

EXACT = "="
"""Before a name that is meant only as it is written: `self.x`, and no other `x`."""
_MAX_STATEMENT = 400
_FLAG = re.compile(
    rb"\b(\w{3,})\s*=(?!=)\s*((?:(?!\bif\b)[^=)]|\([^()]*\))*rank[^=]*[!=]=\s*0\b)", re.I
)
"""Whether it is the first one, also where an argument is called so."""
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
"""One thing or the other, and the condition between them."""
_GIVEN = re.compile(rb"\s*([\w.]+(?:\s*,\s*[\w.]+)*)\s*[-+|]?=(?!=)\s*(.*)")
_TYPE = re.compile(rb"^(\s*[\w.]+)\s*:[^=(]+=(?!=)")
_NOTHING = re.compile(rb"(?:None|False|0|\[\]|\{\}|\(\))\s*(?:[,)].*)?$")
_SHARES = re.compile(rb"broadcast|bcast|scatter|gather|reduce")


def of(statements: List[Statement], lines: List[bytes]) -> Dict[bytes, bytes]:
    """Return by name what says so, also of what is nothing (`None`) but under a condition on it.

    Not where it is given something elsewhere, too, or one rank may tell it to the others.
    """
    found: Dict[bytes, bytes] = {}
    made: Dict[bytes, bytes] = {}
    handed: List[Tuple[bytes, bytes]] = []
    nothing: Set[bytes] = set()
    other: Set[bytes] = set()
    under: List[Tuple[int, bytes]] = []
    for one in statements:
        text = b" ".join(line.strip() for line in lines[one.first - 1 : one.last])
        if len(text) > _MAX_STATEMENT:
            continue
        flag = _FLAG.search(text)
        if flag:
            found[flag[1]] = flag[0]
        branch = one.word in (b"else", b"elif")
        while under and one.indent < under[-1][0] + (not branch):
            under.pop()
        if under and under[-1][0] == one.indent:
            under[-1] = one.indent, b""
        if one.word in (b"if", b"elif") and _ASKS.search(text.partition(b" ")[2].rstrip(b":")):
            under.append((one.indent, text))
        if _SHARES.search(text):
            other.update(re.findall(rb"\w+", text))
        text = _TYPE.sub(rb"\1 =", text)
        given = _GIVEN.match(text)
        either = _EITHER.search(text) if b" else " in text else None
        if either and _ASKS.search(either[3]) and any(map(_NOTHING.match, either.group(2, 4))):
            made[either[1]] = either[0]
            nothing.add(either[1])
            if given and given[1] == either[1]:
                continue
        names = re.split(rb"\s*,\s*", given[1]) if given else []
        if given and _NOTHING.match(given[2]):
            nothing.update(names)
        elif given and under and under[-1][1]:
            made.update((name, under[-1][1] + b" " + given[0].strip()) for name in names)
        elif given and re.match(rb"\w+$", given[2]):
            handed.append((given[1], given[2]))
        else:
            other.update(names)
    for name, source in handed:
        if source in made and source in nothing:
            made[name] = made[source]
            nothing.add(name)
        else:
            other.add(name)
    for name in nothing:
        if name in made and not other.intersection((name, name.rpartition(b".")[2])):
            found[EXACT.encode() + name] = made[name]
    return found
