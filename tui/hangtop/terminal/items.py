"""Items of a list: each a text of one or more lines that a cursor can stand on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hangtop.terminal.spans import plain, plain_lines

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hangtop.terminal.spans import Line


@dataclass(frozen=True, slots=True)
class Item:
    """One entry of an `ItemList`."""

    key: str
    lines: tuple[Line, ...]
    indent: int = 0
    """Blanks before what wraps of its lines."""
    copy: Line | None = None
    """The part of `lines` that `y` copies instead of all of them."""
    target: Any = None
    """What Enter leads to."""

    @property
    def copied(self) -> str:
        """What `y` copies: what is on the screen, and nothing else."""
        return plain_lines(self.lines) if self.copy is None else plain(self.copy)


def numbered(items: Iterable[Item]) -> list[Item]:
    """Keys that stay the same while times and counts in the text change: `fix:0`, `fix:1`."""
    seen: Counter[str] = Counter()
    found = []
    for item in items:
        found.append(replace(item, key=f"{item.key}:{seen[item.key]}"))
        seen[item.key] += 1
    return found
