"""Decide whether a `while` loop terminates: each iteration removes something and adds nothing.

Recognised are `while queue:` of a search that visits nothing twice, `while i < n:` with `i += 1`,
and `while i < j:` where each branch moves one of them. The text decides: anything less plain may
loop for ever.
"""

from __future__ import annotations

import re
from itertools import takewhile
from typing import TYPE_CHECKING, List, Optional

if TYPE_CHECKING:
    from .blocks import Statement

MAX_BODY = 60
"""Most statements in a loop that is examined."""
MAX_STATEMENT = 1000
"""Most bytes of a statement in such a loop."""
_HEAD = re.compile(rb"\s*while\s+(?:len\()?([\w.]+)\)?\s*([<>:]|!=|and\b)[^#]*")
_LEFT = re.compile(rb"^\s*([^=()\[\]]+)=[^=]")
_ASKS = re.compile(rb"\b(?:not|in)\b")
_ENDS = re.compile(rb"\s*while\s+(\w+)\s*<=?\s*(\w+)\s*(?:and\b(?:(?!\bor\b)[^#])*)?:")
_LEAVES = (b"break", b"return", b"raise")
_NOTES = re.compile(rb"\.add\(|\]\s*=[^=]")


def ends(some: List[Statement], lines: List[bytes], first: int) -> bool:
    """Whether the `while` in line ``first`` terminates.

    Items that are added must be new: checked by an `if`, recorded, and not the item removed.
    """
    at = next((i for i, statement in enumerate(some) if statement.first == first), 0)
    body = list(takewhile(lambda statement: statement.indent > some[at].indent, some[at + 1 :]))
    head = _HEAD.match(lines[first - 1])
    if head is None or not 0 < len(body) <= MAX_BODY:
        return False
    code = [
        b" ".join(lines[statement.first - 1 : statement.last]).partition(b" #")[0]
        for statement in body
    ]
    if max(map(len, code)) > MAX_STATEMENT:
        return False
    two = _ENDS.match(lines[first - 1])
    return bool(two and _nearer(body, code, *two.groups())) or _empties(head, body, code)


def _empties(head: "re.Match[bytes]", body: List[Statement], code: List[bytes]) -> bool:
    """Whether each iteration removes from the list in the head, and adds only new items."""
    take = _taking(head, body, code)
    if take is None or _goes_back(body[:take]):
        return False
    left = _LEFT.match(code[take])
    targets = re.findall(rb"\w+", left[1]) if left and head[1] != left[1].strip() else []
    for name in set(re.findall(rb"\b[A-Za-z_][\w.]*", head[0])) - {b"while", b"len", b"and"}:
        word = re.escape(name)
        put = re.compile(
            rb"(?<![\w.])%s\.(?:append|extend|insert|add|put|push|update)\w*\(|push\(%s\b"
            % (word, word)
            + rb"|^\s*(?:[\w.]+\s*,\s*)*%s\b[\w\s.,]*[-+*/|&]?=[^=]" % word
        )
        for i, text in enumerate(code):
            again = i != take and put.search(text)
            if again and not (name == head[1] and _new(code, i, text[again.end() :], targets)):
                return False
    return True


def _taking(head: "re.Match[bytes]", body: List[Statement], code: List[bytes]) -> Optional[int]:
    """Return the index of the statement that removes an item in each iteration, or None."""
    name = re.escape(head[1])
    step = rb"\s*%s\s*%s=\s*[1-9]\d*\s*$" % (name, rb"\+" if head[2] == b"<" else b"-")
    taking = re.compile(
        rb"(?:.*[=\s])?(?:%s\.pop\w*\(|\w*\.?heappop\(%s\b)|%s" % (name, name, step)
    )
    taken = (i for i, text in enumerate(code) if taking.match(text))
    return next((i for i in taken if body[i].indent == body[0].indent and not body[i].whole), None)


def _new(code: List[bytes], at: int, what: bytes, taken: List[bytes]) -> bool:
    """Whether the added item is another one than the removed, and is added only once."""
    same = any(re.search(rb"(?<![\[.\w])%s\b(?![.\[(])" % text, what) for text in taken)
    asked = any(re.match(rb"\s*(?:el)?if\b", text) and _ASKS.search(text) for text in code[:at])
    return asked and not same and any(map(_NOTES.search, code))


def _nearer(body: List[Statement], code: List[bytes], low: bytes, high: bytes) -> bool:
    """Whether each iteration brings two numbers closer, on every path."""
    step = re.compile(rb"\s*(?:%s\s*\+=|%s\s*-=)\s*[1-9]\d*\s*$" % (low, high))
    sets = re.compile(rb"^[^=()\[\]]*\b(?:%s|%s)\b[^=()\[\]]*?=[^=]|:=" % (low, high))
    steps = [step.match(text) is not None for text in code]
    if any(sets.search(text) and not steps[i] for i, text in enumerate(code)):
        return False
    return _each_way(body, steps)


def _each_way(body: List[Statement], steps: List[bool]) -> bool:
    """Whether every path through a block reaches a step, or leaves the loop."""
    heads = [i for i, statement in enumerate(body) if statement.indent == body[0].indent]
    whole = False
    for at, end in zip(heads, [*heads[1:], len(body)]):
        word = body[at].word
        if steps[at] or word in _LEAVES:
            return True
        inside = at + 1 < end and _each_way(body[at + 1 : end], steps[at + 1 : end])
        if _goes_back(body[at:end]) and not (inside and word in (b"if", b"elif", b"else")):
            return False
        # All of `if`, `elif` and `else` have to.
        whole = inside and (word == b"if" or (whole and word in (b"elif", b"else")))
        if whole and word == b"else":
            return True
    return False


def _goes_back(body: List[Statement]) -> bool:
    """Whether a block may start the next iteration."""
    return any(b"continue" in (statement.word, statement.whole) for statement in body)
