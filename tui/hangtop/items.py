"""Items of a list: each a text of one or more lines that a cursor can stand on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
