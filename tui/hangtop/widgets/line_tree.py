"""A tree as a table of its visible rows; folding is kept by key across new data."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from hangtop.widgets.line_table import LineTable

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")


class LineTree(LineTable[T]):
    """A `LineTable` that remembers which branches the user closed, and which they opened."""

    folded: frozenset[str] = frozenset()
    opened: frozenset[str] = frozenset()

    def fold(self, key: str) -> None:
        """Close a branch."""
        self.folded |= {key}
        self.opened -= {key}

    def unfold(self, key: str) -> None:
        """Open a branch, and show a joined chain whole."""
        self.folded -= {key}
        self.opened |= {key}

    def unfold_all(self, keys: Iterable[str]) -> None:
        """Open every branch, and every chain among `keys`."""
        self.folded = frozenset()
        self.opened |= set(keys)
