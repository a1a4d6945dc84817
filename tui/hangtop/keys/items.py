"""Items of a list: each a text of one or more lines that a cursor can select."""

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
    """Indent of its wrapped lines."""
    copy: Line | None = None
    """The part of `lines` that `y` copies instead of all of them."""
    target: Any = None
    """The target of Enter."""

    @property
    def copied(self) -> str:
        """Return what `y` copies: only what is on the screen."""
        return plain_lines(self.lines) if self.copy is None else plain(self.copy)


def numbered(items: Iterable[Item]) -> list[Item]:
    """Return items with keys that survive changes of times and counts: `fix:0`, `fix:1`."""
    counts: Counter[str] = Counter()
    result = []
    for item in items:
        result.append(replace(item, key=f"{item.key}:{counts[item.key]}"))
        counts[item.key] += 1
    return result
