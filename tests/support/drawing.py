"""Draws texts that a pattern matches, as mixed as drawn keys are."""

from __future__ import annotations

import re
import string
from re import _constants as sign  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random

LETTERS = string.ascii_letters + string.digits
CATEGORIES = {
    sign.CATEGORY_DIGIT: string.digits,
    sign.CATEGORY_SPACE: " ",
    sign.CATEGORY_WORD: LETTERS,
    sign.CATEGORY_NOT_SPACE: LETTERS,
    sign.CATEGORY_NOT_WORD: " ",
}
MORE = 12
"""Times more than it must be that something is repeated at most."""


def draw(pattern: re.Pattern[str], rnd: random.Random) -> str:
    """Return one text; what stands before or after it in a pattern is not looked at."""
    while True:
        text = _drawn(_parser.parse(pattern.pattern, pattern.flags), rnd)
        if pattern.search(text):
            return text


def _drawn(parsed: Any, rnd: random.Random) -> str:
    return "".join(_part(op, value, rnd) for op, value in parsed)


def _part(op: Any, value: Any, rnd: random.Random) -> str:
    if op is sign.LITERAL:
        return chr(value)
    if op is sign.ANY or op is sign.NOT_LITERAL:
        return rnd.choice(LETTERS)
    if op is sign.IN:
        return rnd.choice(_characters(value))
    if op in (sign.MAX_REPEAT, sign.MIN_REPEAT):
        low, high, inner = value
        times = rnd.randint(low, min(high, low + MORE))
        return "".join(_drawn(inner, rnd) for _ in range(times))
    if op is sign.SUBPATTERN:
        return _drawn(value[3], rnd)
    if op is sign.BRANCH:
        return _drawn(rnd.choice(value[1]), rnd)
    return ""


def _characters(items: Any) -> str:
    if items[0][0] is sign.NEGATE:
        barred = _characters(items[1:])
        return "".join(char for char in LETTERS if char not in barred)
    found = ""
    for op, value in items:
        if op is sign.LITERAL:
            found += chr(value)
        elif op is sign.RANGE:
            found += "".join(map(chr, range(value[0], value[1] + 1)))
        elif op is sign.CATEGORY:
            found += CATEGORIES[value]
    return found
