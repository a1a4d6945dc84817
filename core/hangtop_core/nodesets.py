"""Many node names as people write them: ``gpu[01-16]``, by ClusterShell.

Only its notation is used here, nothing of it that looks up groups or reaches a node.
"""

from __future__ import annotations

import re
from configparser import ConfigParser
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from hangtop_core.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


@cache
def library() -> Any:
    """Return the module `ClusterShell.NodeSet`, imported without reading a `defaults.conf`.

    It would read one at its import, also of the Python prefix. Nothing in it concerns hangtop,
    which runs none of ClusterShell's workers; a broken one would be an error of every command.
    """
    read = ConfigParser.read
    setattr(ConfigParser, "read", lambda *_: [])  # noqa: B010
    try:
        from ClusterShell import NodeSet
    finally:
        setattr(ConfigParser, "read", read)  # noqa: B010
    return NodeSet


def fold(names: Iterable[str]) -> str:
    """Return ``gpu[01-16]`` for a set of node names, cleaned; ``""`` for none.

    Names that ClusterShell cannot read as such, or would take for sets, are joined by commas.
    """
    return _fold(tuple(sorted({clean(name) for name in names})))


@lru_cache(maxsize=64)
def _fold(names: tuple[str, ...]) -> str:
    """A thousand names take 50 ms, and screens ask for the same ones every second."""
    if len(names) < 2 or any("[" in name for name in names):
        # Somebody's word: of `a[0-99999999]` all numbers would be made.
        return ",".join(names)
    sets = library()
    try:
        return str(sets.NodeSet.fromlist(names, resolver=sets.RESOLVER_NOGROUP))
    except sets.NodeSetException:
        return ",".join(names)


MAX_NAMES = 20_000
_BRACKETS = re.compile(r"\[([^\]]*)")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+)(?:/([0-9]+))?)?")
_AFTER_DIGITS = re.compile(r"(?<![0-9])([0-9]+)\[([0-9,/-]+)\]")
_DIGITS = 18


def is_bounded(text: str, most: int) -> bool:
    """Whether the ranges of a set are written in plain digits, and of ``most`` numbers at most.

    ClusterShell makes all numbers of a range as soon as it has read it, and takes for one what
    Python does: `99_999_999`, ` 99999999`, digits of other scripts, and `1-2-99999999` for one that
    begins with -1. A range that goes down is none, also to it, but only when it comes to it.
    """
    count = 0
    for inside in _BRACKETS.findall(text):
        for one in filter(None, inside.split(",")):
            found = _RANGE.fullmatch(one)
            if found is None or any(len(bound or "") > _DIGITS for bound in found.groups()):
                return False
            more = int(found[2] or found[1]) - int(found[1])
            if more < 0:
                return False
            count += more
    return count <= most


def digits_inside(text: str) -> str:
    """Return a set with digits before a range taken into it: `gpu1[8-12]` is `gpu[18-19,110-112]`.

    Slurm and pdsh mean that. ClusterShell puts the digits before both ends, which makes 95 names of
    these five, and of `99999999[1-10]` more than there is memory for. The set has to be bounded.
    """
    return _AFTER_DIGITS.sub(_take_in, text)


def _take_in(found: re.Match[str]) -> str:
    digits, parts = found[1], []
    for one in found[2].split(","):
        bounds = _RANGE.fullmatch(one)
        if bounds is None:
            return found[0]  # it is told as in any other set
        first, last, step = bounds[1], bounds[2] or bounds[1], bounds[3]
        if len(first) == len(last):
            parts.append(digits + one.replace("-", f"-{digits}"))
        elif first.startswith("0") and first != "0":
            return found[0]
        elif step:
            every = range(int(first), int(last) + 1, max(int(step), 1))
            parts += [f"{digits}{number}" for number in every]
        else:
            spans = _of_one_width(int(first), int(last))
            parts += [f"{digits}{begin}-{digits}{end}" for begin, end in spans]
    return f"[{','.join(parts)}]"


def _of_one_width(first: int, last: int) -> Iterator[tuple[int, int]]:
    """The parts of a range in which all numbers have as many digits."""
    while first <= last:
        end = min(10 ** len(str(first)) - 1, last)
        yield first, end
        first = end + 1


def unfold(text: str) -> list[str]:
    """Return the names of a set such as ``gpu[01-16]``; none where it cannot be read as one."""
    if not is_bounded(text, MAX_NAMES):
        return []
    sets = library()
    try:
        found = sets.NodeSet(digits_inside(text), resolver=sets.RESOLVER_NOGROUP)
        return [str(name) for name in found] if len(found) <= MAX_NAMES else []
    except sets.NodeSetException:
        return []
