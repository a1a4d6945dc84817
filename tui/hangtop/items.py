"""Items of a list: each a text of one or more lines that a cursor can stand on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hangtop.spans import Line


@dataclass(frozen=True, slots=True)
class Item:
    """One entry of an `ItemList`."""

    key: str
    lines: tuple[Line, ...]
    indent: int = 0
    """Blanks before what wraps of its lines."""
    copy: str | None = None
    """What `y` copies instead of the text."""
    target: Any = None
    """What Enter leads to."""


def numbered(items: Iterable[Item]) -> list[Item]:
    """Keys that stay the same while times and counts in the text change: `fix:0`, `fix:1`."""
    seen: Counter[str] = Counter()
    found = []
    for item in items:
        found.append(replace(item, key=f"{item.key}:{seen[item.key]}"))
        seen[item.key] += 1
    return found
