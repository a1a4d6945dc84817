"""Sets of ranks as text: ``0-3120,3122-7015``, the notation users know from ClusterShell and Slurm.

`fold` writes the one canonical form; `parse` reads what people type and says where it is wrong.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_RANK = 999_999
"""Larger numbers are typing errors, and a range up to one would fill the memory."""

_PIECE = re.compile(r"\s*+(\d{1,9})\s*+(?:-\s*+(\d{1,9})\s*+)?")


def fold(ranks: Iterable[int]) -> str:
    """Return the canonical text of a set of ranks: ascending, runs joined, ``""`` when empty."""
    pieces: list[str] = []
    first = last = None
    for rank in sorted(set(ranks)):
        if last is not None and rank == last + 1:
            last = rank
            continue
        if first is not None:
            pieces.append(_piece(first, last))
        first = last = rank
    if first is not None:
        pieces.append(_piece(first, last))
    return ",".join(pieces)


def names(ranks: Iterable[int]) -> str:
    """`rank 2`, or `ranks 0-1,3`."""
    numbers = set(ranks)
    return ("rank " if len(numbers) == 1 else "ranks ") + fold(numbers)


def _piece(first: int, last: int | None) -> str:
    return str(first) if first == last else f"{first}-{last}"


def parse(text: str) -> frozenset[int]:
    """Return the ranks that ``text`` names.

    Blanks around numbers and repeated ranks are accepted; ``""`` is the empty set.

    Raises:
        ValueError: with the position (from 1) of what cannot be read.
    """
    ranks: set[int] = set()
    if not text.strip():
        return frozenset()
    at = 0
    while True:
        match = _PIECE.match(text, at)
        if match is None:
            raise _wrong(text, at, "a rank number is missing")
        first = int(match[1])
        last = int(match[2]) if match[2] is not None else first
        if last > MAX_RANK:
            raise _wrong(text, match.end() - 1, f"ranks go up to {MAX_RANK}")
        if last < first:
            raise _wrong(text, match.start(2), f"the range {first}-{last} runs backwards")
        ranks.update(range(first, last + 1))
        at = match.end()
        if at == len(text):
            return frozenset(ranks)
        if text[at] != ",":
            raise _wrong(text, at, f"{text[at]!r} does not belong in a rank set")
        at += 1


def _wrong(text: str, at: int, why: str) -> ValueError:
    return ValueError(f"{why}, at position {at + 1} of {text!r}")
