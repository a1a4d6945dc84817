"""Columns as data: views declare them, `LineTable` lays them out and paints them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangtop.spans import Line

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
