"""Columns as data: views declare them, `LineTable` lays them out and paints them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hangtop.terminal.spans import Line, Span, cells, fit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

T = TypeVar("T")


@dataclass(frozen=True)
class Column(Generic[T]):
    """A column: how to make a cell, how wide it may be, and when it is dropped."""

    key: str
    title: str
    cell: Callable[[T], Line]
    sort: Callable[[T], Any] | None = None
    minimum: int = 1
    maximum: int = 24
    align: str = "left"
    keep_end: bool = False
    """Whether long values are cut at their beginning, as for paths."""
    flex: bool = False
    """Whether the column takes a share of the remaining width."""
    optional: bool = False
    """Whether the column is left out while all its cells are empty."""
    drop: int = 0
    """Drop priority: columns with the highest number go first in narrow panes; 0 never goes."""


@dataclass
class Order:
    """The sort order of rows; without a column they stay in the given order."""

    column: str | None = None
    inverted: bool = False


class Drawn:
    """The cells of a visible row, their widths, and the line last made of them."""

    def __init__(self, row: Sequence[Line]) -> None:
        self.cells = row
        self.sizes = list(map(cells, row))
        self._made: tuple[Any, Line] | None = None

    def line(
        self,
        start: Line,
        layout: Sequence[tuple[Column[Any], int]],
        numbers: Mapping[str, int],
        width: int,
    ) -> Line:
        """Return the row behind ``start``, in columns of these widths.

        ``numbers`` maps column keys to indices in the cells.
        """
        asked = start, layout, width
        if self._made is None or self._made[0] != asked:
            spans = list(start)
            for count, (column, size) in enumerate(layout):
                if count:
                    spans.append(Span(" "))
                cell = self.cells[numbers[column.key]]
                spans += fit(cell, size, align=column.align, keep_end=column.keep_end)
            self._made = asked, fit(tuple(spans), width)
        return self._made[1]
