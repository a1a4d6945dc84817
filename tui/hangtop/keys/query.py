"""The filter language: `3-7`, `state=stopped`, `node~gpu`, `idle>60`, or any text.

Words are joined by and. A word is a rank set, a field with `=`, `!=`, `~` (contains), `>` or `<`,
or a text that any field may contain; `!` before a text excludes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from hangtop_core.text import rank_sets

Fields = Mapping[str, str | float | None]
Match = Callable[[Fields, frozenset[int], str], bool]
"""A predicate: from the fields of a row, its ranks and its text, whether it is shown."""

_FIELD = re.compile(r"([a-z%]+)(!=|=|~|>|<)(.*)", re.IGNORECASE)
_RANKS = re.compile(r"(?:pid)?\d(?:pid|[\d,-])*")


def parse(text: str, fields: frozenset[str]) -> Match:
    """Compile a filter.

    Raises:
        ValueError: a field is not among `fields`, a number is invalid, or a rank set runs
            backwards; the message says which.
    """
    tests = [_word(word, fields) for word in text.split()]

    def match(values: Fields, ranks: frozenset[int], row: str) -> bool:
        return all(test(values, ranks, row) for test in tests)

    return match


def _word(word: str, fields: frozenset[str]) -> Match:
    if _RANKS.fullmatch(word):
        wanted = rank_sets.parse(word.rstrip(",-"))
        return lambda values, ranks, row: any(rank_sets.contains(wanted, rank) for rank in ranks)
    match = _FIELD.fullmatch(word)
    if match is None:
        negated = word.startswith("!") and len(word) > 1
        needle = (word[1:] if negated else word).casefold()
        return lambda values, ranks, row: (needle in row.casefold()) != negated
    name, sign, value = match[1].casefold(), match[2], match[3].casefold()
    if name not in fields:
        raise ValueError(f"no field {name!r}; there are {', '.join(sorted(fields))}")
    if sign in "<>":
        return _compare(name, sign, value)
    return lambda values, ranks, row: _test(sign, _text(values.get(name)), value)


def _text(value: str | float | None) -> str:
    """Return a value as it would be typed: 3, not 3.0."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value.casefold()
    return str(int(value)) if float(value).is_integer() else f"{value:g}"


def _test(sign: str, have: str, value: str) -> bool:
    if sign == "~":
        return value in have
    return (have == value) == (sign == "=")


def _compare(name: str, sign: str, value: str) -> Match:
    try:
        limit = float(value.rstrip("s%"))
    except ValueError:
        raise ValueError(f"{name}{sign} needs a number, not {value!r}") from None

    def test(values: Fields, ranks: frozenset[int], row: str) -> bool:
        have = values.get(name)
        if not isinstance(have, int | float):
            return False
        return have > limit if sign == ">" else have < limit

    return test
