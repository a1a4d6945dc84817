"""A table over any number of rows: columns are data, only visible rows are ever rendered.

The cursor belongs to a row's key, not to its place, so it stays on the same rank while rows are
sorted, filtered and renewed. On narrow screens columns drop by priority.
"""

from __future__ import annotations

from itertools import compress
from operator import attrgetter, is_not
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from textual.message import Message

from hangtop.terminal.columns import Column, Drawn, Order
from hangtop.terminal.spans import EMPTY, Line, Span, cells, fit, line, plain, wrap_all
from hangtop.widgets.line_pane import LinePane

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")
SAMPLED_ROWS = 100
"""Number of rows that column widths are measured on, besides the visible ones."""
WORTH_GIVING_BACK = 4
"""Columns keep the width they once needed, unless this many cells are missing elsewhere."""


class LineTable(LinePane, Generic[T]):
    """Rows under a header, with a cursor, marks, sorting and a filter."""

    class Opened(Message):
        """Enter was pressed on a row."""

        def __init__(self, table: LineTable[Any], item: Any) -> None:
            super().__init__()
            self.table = table
            self.item = item

    class Moved(Message):
        """The cursor moved to another row."""

        def __init__(self, table: LineTable[Any], item: Any) -> None:
            super().__init__()
            self.table = table
            self.item = item

    def __init__(
        self,
        title: str = "",
        *,
        pane_id: str,
        columns: Sequence[Column[T]],
        key: Callable[[T], str] = attrgetter("key"),
        headed: bool = True,
        heading: Callable[[T], Line | None] | None = None,
    ) -> None:
        super().__init__(title, pane_id=pane_id)
        self.columns = tuple(columns)
        self._numbers = {column.key: number for number, column in enumerate(self.columns)}
        self.key_of = key
        self.headed = headed
        self._heading = heading
        self.order = Order()
        self.marks: frozenset[str] = frozenset()
        self.cursor_key: str | None = None
        self.chosen = False
        """Whether the user moved the cursor; until then it stays on the first row."""
        self.empty: Sequence[Line] = ()
        """The text shown when there is no row: what was searched for, and what was seen instead."""
        self._given: Sequence[T] = ()
        self._flat = True
        """Whether no row is a heading."""
        self._accept: Callable[[T], bool] | None = None
        self._none: Line = EMPTY
        """The text shown when there are rows, but none is accepted."""
        self._laid: list[Line] = []
        """The wrapped text that is shown without rows."""
        self._items: list[T] = []
        self._keys: list[str] = []
        self._places: dict[str, int] = {}
        self._sizes: dict[str, tuple[object, list[int]]] = {}
        """Cell widths of rows out of view, by key, valid while a row, or its `looks`, is the same
        object.
        """
        self._drawn: dict[int, Drawn] = {}
        """The rows in view, by place."""
        self._widths: dict[str, int] = {}
        self._whole: dict[str, int] = {}
        """The column widths that would cut nothing at all."""
        self._filled: set[str] = set()
        """Columns in which any cell was ever filled."""
        self._layout: list[tuple[Column[T], int]] = []

    # Data

    @property
    def items(self) -> Sequence[T]:
        """The rows that pass the filter, in their order."""
        return self._items

    @property
    def given(self) -> Sequence[T]:
        """All rows."""
        return self._given

    def set_items(self, items: Sequence[T], empty: Sequence[Line] = ()) -> None:
        """Show these rows; cursor, order, marks and filter stay."""
        same = self._flat and len(items) == len(self._given)
        new = compress(items, map(is_not, items, self._given)) if same else items
        self._flat = self._heading is None or not any(map(self._heading, new))
        self._given = items
        self.empty = empty
        self._arrange()

    def set_filter(self, accept: Callable[[T], bool] | None, none: Line = EMPTY) -> None:
        """Show only rows that are accepted; ``none`` is shown where none is."""
        self._accept, self._none = accept, none
        self._arrange()

    def set_order(self, order: Order) -> None:
        """Sort by another column."""
        self.order = order
        self._arrange()

    def sort_columns(self) -> list[str | None]:
        """Return the columns that `<` and `>` step through; None stands for the given order."""
        return [None, *(column.key for column, _ in self._layout if column.sort)]

    def heading_of(self, item: T) -> Line | None:
        """Return the line of a heading, drawn instead of cells and moved with them; else None."""
        return None if self._heading is None else self._heading(item)

    def _arrange(self) -> None:
        place, before = self.cursor, self._items
        items = self._items = self._in_order()
        new = compress(range(len(items)), map(is_not, items, before))
        if len(items) != len(before) or any(self.key_of(items[i]) != self._keys[i] for i in new):
            self._keys = list(map(self.key_of, items))
            self._places = {key: index for index, key in enumerate(self._keys)}
        if items and (self.cursor_key not in self._places or not self.chosen):
            key = self.key_of(items[min(place, len(items) - 1) if self.chosen else 0])
            moved = key != self.cursor_key
            self.cursor_key = key
            if moved:
                self._moved()
        self._reveal()
        self.paint()

    def _in_order(self) -> list[T]:
        """Return the shown rows in order; fast for many rows without filter and sorting."""
        plain_order = self.order.column is None and not self.order.inverted
        if self._flat and plain_order and self._accept is None:
            return list(self._given)
        return [item for part in self._parts() for item in part]

    def _parts(self) -> list[list[T]]:
        """Return the accepted rows, sorted below each heading; headings stay before theirs."""
        parts: list[list[T]] = []
        heads: list[list[T]] = []
        for item in self._given:
            if self.heading_of(item) is not None:
                heads.append([item])
                parts.append([])
                continue
            if not parts:
                heads.append([])
                parts.append([])
            if self._accept is None or self._accept(item):
                parts[-1].append(item)
        column = next((c for c in self.columns if c.key == self.order.column), None)
        for part in parts:
            if column is not None and column.sort is not None:
                part.sort(key=column.sort, reverse=self.order.inverted)
            elif self.order.inverted:
                part.reverse()
        pairs = zip(heads, parts, strict=True)
        return [[*head, *part] for head, part in pairs if part or self._accept is None]

    # Cursor

    @property
    def cursor(self) -> int:
        """The place of the cursor's row."""
        return self._places.get(self.cursor_key or "", 0)

    @property
    def current(self) -> T | None:
        """The row under the cursor."""
        return self._items[self.cursor] if self._items else None

    def select(self, key: str) -> bool:
        """Put the cursor on a row; return False when it does not exist."""
        if key not in self._places:
            return False
        self.chosen = True
        if key != self.cursor_key:
            self.cursor_key = key
            self._moved()
        self._reveal()
        self.paint()
        return True

    def move(self, count: int) -> None:
        """Move the cursor by rows."""
        if not self._items:
            self.scroll_lines(count)
            return
        place = max(0, min(self.cursor + count, len(self._items) - 1))
        self.select(self.key_of(self._items[place]))

    def move_end(self, direction: int) -> None:
        """Move to the first or last row."""
        self.move(direction * max(len(self._items), 1))

    def open(self) -> None:
        """Do what Enter does."""
        if self.current is not None:
            self.post_message(self.Opened(self, self.current))

    def jump(self, key: str) -> None:
        """Put the cursor on a row, with some rows above it in view."""
        if self.select(key):
            self.top = max(self.cursor - self.page // 3, 0)
            self.paint()

    def _moved(self) -> None:
        if self.is_attached and self.current is not None:
            self.post_message(self.Moved(self, self.current))

    def _reveal(self) -> None:
        page = self.page
        if page <= 0:
            return
        if self.cursor < self.top:
            self.top = self.cursor
        elif self.cursor >= self.top + page:
            self.top = self.cursor - page + 1

    def on_resize(self) -> None:
        """Keep the cursor in view in the new size."""
        self._reveal()
        self.paint()

    # Lines

    def prepare(self, width: int) -> int:
        """Lay out the columns."""
        if not self._items:
            self._laid = wrap_all(self._instead(), width)
            return len(self._laid)
        present = self._measured()
        before = self._widths
        self._widths = {key: max(size, before.get(key, 0)) for key, size in present.items()}
        self._layout = self._fitted(width - 2)
        unused = sum(self._widths.values()) - sum(present.values())
        if unused >= WORTH_GIVING_BACK and self._is_tight():
            self._widths = present
            self._layout = self._fitted(width - 2)
        return len(self._items)

    def _instead(self) -> Sequence[Line]:
        """Return the text for the case that there is no row to show."""
        refused = self._given and self._accept is not None and self._none
        return (self._none,) if refused else self.empty

    def _measured(self) -> dict[str, int]:
        """Return the width that each column needs for its present cells."""
        present = self._present()
        widths = {}
        for column, size in zip(self.columns, present, strict=True):
            if size:
                self._filled.add(column.key)
            self._whole[column.key] = size
            title = len(column.title) + (column.key == self.order.column)
            least = max(title, 0 if column.flex else column.minimum)
            widths[column.key] = min(max(size, least), max(column.maximum, title))
        return widths

    def _present(self) -> list[int]:
        """Return the widest cell of each column, among the first rows and those in view."""
        in_view = self._items[self.top : self.top + self.size.height]
        drawn, self._drawn = self._drawn, {}
        for place, item in enumerate(in_view, self.top):
            if self.heading_of(item) is None:
                row = [column.cell(item) for column in self.columns]
                same = (last_drawn := drawn.get(place)) is not None and last_drawn.cells == row
                self._drawn[place] = last_drawn if last_drawn is not None and same else Drawn(row)
        sizes = [drawn_row.sizes for drawn_row in self._drawn.values()]
        before, self._sizes = self._sizes, {}
        for key, item in zip(self._keys[:SAMPLED_ROWS], self._items[:SAMPLED_ROWS], strict=True):
            if self.heading_of(item) is not None:
                continue
            cached, looks = before.get(key), getattr(item, "looks", item)
            if cached is None or cached[0] is not looks:
                cached = (looks, [cells(column.cell(item)) for column in self.columns])
            self._sizes[key] = cached
            sizes.append(cached[1])
        return [max(size) for size in zip(*sizes, strict=True)] or [0] * len(self.columns)

    def _is_tight(self) -> bool:
        """Return whether a column was left out or is narrower than its cells."""
        shown = {column.key: size for column, size in self._layout}
        wanted = (c.key for c in self.columns if not c.optional or c.key in self._filled)
        return any(shown.get(key, 0) < self._widths[key] for key in wanted)

    def _fitted(self, width: int) -> list[tuple[Column[T], int]]:
        """Return the columns that fit, with their widths; one blank between them."""
        kept = [c for c in self.columns if not c.optional or c.key in self._filled]

        def need(column: Column[T]) -> int:
            natural = self._widths[column.key]
            return min(column.minimum, natural) if column.flex else natural

        while sum(need(c) + 1 for c in kept) - 1 > width:
            going = max(kept, key=lambda c: (c.drop, kept.index(c)))
            if going.drop == 0:
                break
            kept.remove(going)
        widths = {c.key: need(c) for c in kept}
        spare = width - sum(widths.values()) - len(kept) + 1
        flexible = [c.key for c in kept if c.flex]
        # Beyond their usual maximum only when all have that; the rest stays at the end. Columns
        # that need least come first, so that one long text does not cut its neighbours.
        for wishes in (self._widths, self._whole):
            for key in sorted(flexible, key=lambda key: wishes[key] - widths[key]):
                share = max(min(wishes[key] - widths[key], spare), 0)
                widths[key] += share
                spare -= share
        return [(column, widths[column.key]) for column in kept]

    def header_line(self, width: int) -> Line | None:
        """Return the titles of the shown columns, the sorted one marked."""
        if not self.headed or not self._items:
            return None
        spans: list[Span] = [Span("  ")]
        for column, size in self._layout:
            title = column.title
            if self.order.column == column.key:
                title += "▲" if self.order.inverted else "▼"
            spans += [*fit(line((title, "head")), size, align=column.align), Span(" ")]
        return tuple(spans[:-1])

    def body_line(self, index: int, width: int) -> tuple[Line, str]:
        """Return one row, or one line of the text shown without rows."""
        if not self._items:
            return self._laid[index], ""
        item = self._items[index]
        key = self.key_of(item)
        is_current = key == self.cursor_key
        overlay = ("cursor" if self.has_focus else "resting") if is_current else ""
        mark = "✔" if key in self.marks else " "
        start = (Span("▸" if is_current else " ", "focus"), Span(mark, "info"))
        heading = self.heading_of(item)
        if heading is not None:
            return fit((*start, *heading), width), overlay
        row = self._drawn.get(index) or Drawn([column.cell(item) for column in self.columns])
        return row.line(start, self._layout, self._numbers, width), overlay

    def text_lines(self) -> list[Line]:
        """Return all rows, every column at its natural width."""
        if not self._items:
            return list(self._instead())
        rows = [
            [column.cell(item) for column in self.columns] if self.heading_of(item) is None else []
            for item in self._items
        ]
        titles = [line(column.title) for column in self.columns]
        sizes = [
            max(cells(row[i]) for row in (titles, *rows) if row) for i in range(len(self.columns))
        ]
        lines = [
            _joined(row, sizes, self.columns) if row else self.heading_of(item) or EMPTY
            for row, item in zip(rows, self._items, strict=True)
        ]
        return [_joined(titles, sizes, self.columns), *lines] if self.headed else lines

    def row_text(self, item: T) -> str:
        """Return a row as text with all columns, for filters and for `y`."""
        heading = self.heading_of(item)
        if heading is not None:
            return plain(heading).strip()
        cells_of = (plain(column.cell(item)).strip() for column in self.columns)
        return "  ".join(text for text in cells_of if text)

    def current_text(self) -> str:
        """Return the row under the cursor."""
        return super().current_text() if self.current is None else self.row_text(self.current)


def _joined(row: Sequence[Line], sizes: Sequence[int], columns: Sequence[Column[Any]]) -> Line:
    spans: Line = EMPTY
    for cell, size, column in zip(row, sizes, columns, strict=True):
        spans = (*spans, *fit(cell, size, align=column.align), Span("  "))
    return spans
