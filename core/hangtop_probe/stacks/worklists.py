"""Whether a `while` comes to its end: each turn takes something away and puts nothing back.

`while queue:` of a search that goes nowhere twice, `while i < n:` with `i += 1`, `while i < j:` of
which each branch moves one. By the text: what is not as plain as that may go round for ever.
"""

from __future__ import annotations

import re
from itertools import takewhile
from typing import TYPE_CHECKING, List

if TYPE_CHECKING:
    from .blocks import Statement

MAX_BODY = 60
"""Statements in a loop that is looked at."""
MAX_STATEMENT = 1000
"""Bytes of one of them."""
_HEAD = re.compile(rb"\s*while\s+(?:len\()?([\w.]+)\)?\s*([<>:]|!=|and\b)[^#]*")
_LEFT = re.compile(rb"^\s*([^=()\[\]]+)=[^=]")
_ASKS = re.compile(rb"\b(?:not|in)\b")
_ENDS = re.compile(rb"\s*while\s+(\w+)\s*<=?\s*(\w+)\s*(?:and\b(?:(?!\bor\b)[^#])*)?:")
_LEAVES = (b"break", b"return", b"raise")
_NOTES = re.compile(rb"\.add\(|\]\s*=[^=]")


def ends(some: List[Statement], lines: List[bytes], first: int) -> bool:
    """Whether the `while` in line ``first`` does.

    What is put back has to be new: asked for by an `if`, noted, and not what was taken.
    """
    at = next((i for i, one in enumerate(some) if one.first == first), 0)
    head = _HEAD.match(lines[first - 1])
    body = list(takewhile(lambda one: one.indent > some[at].indent, some[at + 1 :]))
    if head is None or not 0 < len(body) <= MAX_BODY:
        return False
    code = [b" ".join(lines[one.first - 1 : one.last]).partition(b" #")[0] for one in body]
    if any(len(text) > MAX_STATEMENT for text in code):
        return False
    two = _ENDS.match(lines[first - 1])
    if two and _nearer(body, code, *two.groups()):
        return True
    name = re.escape(head[1])
    step = rb"\s*%s\s*%s=\s*[1-9]\d*\s*$" % (name, rb"\+" if head[2] == b"<" else b"-")
    taking = re.compile(
        rb"(?:.*[=\s])?(?:%s\.pop\w*\(|\w*\.?heappop\(%s\b)|%s" % (name, name, step)
    )
    taken = (i for i, text in enumerate(code) if taking.match(text))
    take = next((i for i in taken if body[i].indent == body[0].indent and not body[i].whole), None)
    if take is None or any(b"continue" in (one.word, one.whole) for one in body[:take]):
        return False
    left = _LEFT.match(code[take])
    targets = re.findall(rb"\w+", left[1]) if left and head[1] != left[1].strip() else []
    for one in set(re.findall(rb"\b[A-Za-z_][\w.]*", head[0])) - {b"while", b"len", b"and"}:
        word = re.escape(one)
        put = re.compile(
            rb"(?<![\w.])%s\.(?:append|extend|insert|add|put|push|update)\w*\(|push\(%s\b"
            % (word, word)
            + rb"|^\s*(?:[\w.]+\s*,\s*)*%s\b[\w\s.,]*[-+*/|&]?=[^=]" % word
        )
        for i, text in enumerate(code):
            again = i != take and put.search(text)
            if again and not (one == head[1] and _new(code, i, text[again.end() :], targets)):
                return False
    return True


def _new(code: List[bytes], at: int, what: bytes, taken: List[bytes]) -> bool:
    """Whether it is something else that is put there, and only once."""
    same = any(re.search(rb"(?<![\[.\w])%s\b(?![.\[(])" % one, what) for one in taken)
    asked = any(re.match(rb"\s*(?:el)?if\b", one) and _ASKS.search(one) for one in code[:at])
    return asked and not same and any(map(_NOTES.search, code))


def _nearer(body: List[Statement], code: List[bytes], low: bytes, high: bytes) -> bool:
    """Whether each turn brings two numbers nearer to one another, whichever way it takes."""
    step = re.compile(rb"\s*(?:%s\s*\+=|%s\s*-=)\s*[1-9]\d*\s*$" % (low, high))
    sets = re.compile(rb"^[^=()\[\]]*\b(?:%s|%s)\b[^=()\[\]]*?=[^=]|:=" % (low, high))
    steps = [step.match(text) is not None for text in code]
    if any(sets.search(text) and not steps[i] for i, text in enumerate(code)):
        return False
    return _each_way(body, steps)


def _each_way(body: List[Statement], steps: List[bool]) -> bool:
    """Whether every way through a block comes to a step, or leaves."""
    heads = [i for i, one in enumerate(body) if one.indent == body[0].indent]
    whole = False
    for at, end in zip(heads, [*heads[1:], len(body)]):
        one = body[at]
        if steps[at] or one.word in _LEAVES:
            return True
        inside = at + 1 < end and _each_way(body[at + 1 : end], steps[at + 1 : end])
        back = any(b"continue" in (each.word, each.whole) for each in body[at:end])
        if back and not (inside and one.word in (b"if", b"elif", b"else")):
            return False
        # Of `if`, `elif` and `else` all have to.
        whole = inside and (one.word == b"if" or (whole and one.word in (b"elif", b"else")))
        if whole and one.word == b"else":
            return True
    return False
