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
    """One column: how a cell is made, how wide it may be, and when it has to go."""

    key: str
    title: str
    cell: Callable[[T], Line]
    sort: Callable[[T], Any] | None = None
    minimum: int = 1
    maximum: int = 24
    align: str = "left"
    keep_end: bool = False
    """Cut long values at their beginning, as for paths."""
    flex: bool = False
    """Takes its share of the room that is left."""
    optional: bool = False
    """Left out while nothing stands in it."""
    drop: int = 0
    """Columns with the highest number go first when there is no room; 0 never goes."""


@dataclass
class Order:
    """How rows are sorted; with no column in the order they came in."""

    column: str | None = None
    inverted: bool = False


class Drawn:
    """The cells of a row in view, how wide they are, and the line that was made of them last."""

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
        """The row behind ``start``, in columns of these widths; ``numbers`` tells their cells."""
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
