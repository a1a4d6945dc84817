"""Compact notation for many node names, ``gpu[01-16]``, by ClusterShell.

Only its notation is used here, none of its group lookup or transports.
"""

from __future__ import annotations

import re
from configparser import ConfigParser
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any

from hangtop_core.text.addresses import is_name
from hangtop_core.text.clean import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


@cache
def library() -> Any:
    """Return the module `ClusterShell.NodeSet`, imported without reading a `defaults.conf`.

    ClusterShell would read one at its import, also from the Python prefix. Nothing in it concerns
    hangtop, which runs none of ClusterShell's workers; a broken file would break every command.
    """
    read = ConfigParser.read
    setattr(ConfigParser, "read", lambda *_: [])  # noqa: B010
    try:
        from ClusterShell import NodeSet
    finally:
        setattr(ConfigParser, "read", read)  # noqa: B010
    _bound_merging(NodeSet.RangeSetND)
    return NodeSet


def _bound_merging(kind: Any) -> None:
    """Leave many names with several numbers, as in `ip-10-0-37-204`, unmerged in a set.

    ClusterShell compares all pairs to merge them, which takes 10 s for 4,000 names.
    """
    merge = kind._fold_multivariate_merge

    def merge_few(vectors: Any) -> None:
        (vectors._sort if len(vectors._veclist) > MAX_MERGED else partial(merge, vectors))()

    kind._fold_multivariate_merge = merge_few


def combined(
    expression: str, names_of: Callable[[str], Iterable[str]], limit: int
) -> list[str] | None:
    """Return the names of a set, each once, in the order of ClusterShell.

    Operators work from left to right, as in ClusterShell, which takes quadratic time for names with
    several numbers. ``names_of`` gives the names of a part without any operator. Return None where
    all parts together have more than ``limit`` names.
    """
    nodes: set[str] = set()
    for operator, part in _PART.findall(f",{expression}")[:-1] if expression else ():
        names = set(names_of(part or operator))  # an operator alone is refused
        limit -= len(names)
        if limit < 0:
            return None
        if operator == "&":
            nodes &= names
        elif operator == "!":
            nodes -= names
        elif operator == "^":
            nodes ^= names
        else:
            nodes |= names
    return sorted(nodes, key=_order)


def _order(name: str) -> tuple[str, list[tuple[int, str]]]:
    numbers = _DIGIT_RUN.findall(name)
    return _DIGIT_RUN.sub("%s", name), [(len(number), number) for number in numbers]


def fold(names: Iterable[str]) -> str:
    """Return ``gpu[01-16]`` for a set of node names, cleaned; ``""`` for none.

    Names that ClusterShell cannot parse, or would take for sets, are joined by commas.
    """
    return _fold(tuple(sorted({clean(name) for name in names})))


@lru_cache(maxsize=64)
def _fold(names: tuple[str, ...]) -> str:
    """Fold names, with a cache: a thousand take 50 ms, and screens repeat them every second."""
    if len(names) < 2 or any("[" in name for name in names):
        # A name from outside: `a[0-99999999]` would be expanded to all its numbers.
        return ",".join(names)
    if len(names) > MAX_MERGED:
        return ",".join(_fold_each_number(names) if all(map(is_name, names)) else names)
    sets = library()
    try:
        return str(sets.NodeSet.fromlist(names, resolver=sets.RESOLVER_NOGROUP))
    except sets.NodeSetException:
        return ",".join(names)


def _fold_each_number(names: Iterable[str]) -> Iterator[str]:
    """Fold names by one of their numbers after the other, from the last."""
    folded = [tuple(_DIGIT_RUN.split(name)) for name in names]
    for place in range(max(map(len, folded)) - 2, 0, -2):
        alike: dict[tuple[str, ...], list[str]] = {}
        for parts in folded:
            number = parts[place : place + 1]
            alike.setdefault((*parts[:place], "", *parts[place + 1 :]), []).extend(number)
        folded = [
            (*key[:place], _range(numbers), *key[place + 1 :]) if numbers else key
            for key, numbers in alike.items()
        ]
    return ("".join(parts) for parts in sorted(folded))


def _range(numbers: list[str]) -> str:
    if len(numbers) == 1:
        return numbers[0]
    return f"[{library().RangeSet.fromlist(numbers)}]"


MAX_NAMES = 20_000
MAX_MERGED = 256
"""Maximum names with several numbers that are compared pairwise to fold them."""
MAX_TEXT = 1 << 20
"""Maximum characters of a set: 16,384 names of 64."""
_PART = re.compile(r"([,!&^]?)((?:\[[^\]]*\]?|[^\[,!&^])*)")
_DIGIT_RUN = re.compile(r"([0-9]+)")
_BRACKETS = re.compile(r"\[([^\]]*)")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+)(?:/([0-9]+))?)?")
_AFTER_DIGITS = re.compile(r"(?<![0-9])([0-9]+)\[([0-9,/-]+)\]")
_DIGITS = 18


def is_bounded(text: str, limit: int) -> bool:
    """Return whether a set's ranges are written in plain digits, with ``limit`` numbers at most.

    ClusterShell expands a range as soon as it has read it, and accepts what Python does:
    `99_999_999`, ` 99999999`, digits of other scripts, and `1-2-99999999` as a range from -1. It
    also refuses a descending range, but only when it expands it.
    """
    count = 0
    for _, part in _PART.findall(text):
        names = 1
        for inside in _BRACKETS.findall(part):
            numbers = _count(inside)
            if numbers is None:
                return False
            names *= max(numbers, 1)
        count += names
    return count <= limit


def _count(inside: str) -> int | None:
    """Return how many numbers ranges have; None where they are not plain."""
    count = 0
    for part in filter(None, inside.split(",")):
        bounds = _RANGE.fullmatch(part)
        if bounds is None or any(len(bound or "") > _DIGITS for bound in bounds.groups()):
            return None
        more = int(bounds[2] or bounds[1]) - int(bounds[1])
        if more < 0:
            return None
        count += more + 1
    return count


def digits_inside(text: str) -> str:
    """Return a set with digits before a range moved into it: `gpu1[8-12]` is `gpu[18-19,110-112]`.

    Slurm and pdsh mean this. ClusterShell puts the digits before both ends, which makes 95 names
    instead of five, and for `99999999[1-10]` exhausts the memory. The set must be bounded.
    """
    return _AFTER_DIGITS.sub(_take_in, text)


def _take_in(match: re.Match[str]) -> str:
    digits, parts = match[1], []
    for span in match[2].split(","):
        bounds = _RANGE.fullmatch(span)
        if bounds is None:
            return match[0]  # reported as in any other set
        first, last, step = bounds[1], bounds[2] or bounds[1], bounds[3]
        if len(first) == len(last):
            parts.append(digits + span.replace("-", f"-{digits}"))
        elif first.startswith("0") and first != "0":
            return match[0]
        elif step:
            every = range(int(first), int(last) + 1, max(int(step), 1))
            parts += [f"{digits}{number}" for number in every]
        else:
            spans = _of_one_width(int(first), int(last))
            parts += [f"{digits}{begin}-{digits}{end}" for begin, end in spans]
    return f"[{','.join(parts)}]"


def _of_one_width(first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a range in which all numbers have equally many digits."""
    while first <= last:
        end = min(10 ** len(str(first)) - 1, last)
        yield first, end
        first = end + 1


def unfold(text: str) -> list[str]:
    """Return the names of a set such as ``gpu[01-16]``; none where it cannot be parsed."""
    if len(text) > MAX_TEXT or not is_bounded(text, MAX_NAMES):
        return []
    sets = library()
    plain = partial(sets.NodeSet, resolver=sets.RESOLVER_NOGROUP)
    try:
        return combined(digits_inside(text), plain, MAX_NAMES) or []
    except sets.NodeSetException:
        return []
