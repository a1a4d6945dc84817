"""A list of wrapped entries, with a cursor on whole entries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.message import Message

from hangtop.terminal.spans import Line, Span, wrap
from hangtop.widgets.line_pane import LinePane

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop.keys.items import Item


class ItemList(LinePane):
    """A list for tens of entries that must be read whole: evidence, steps, blind spots."""

    class Opened(Message):
        """Enter was pressed on an entry."""

        def __init__(self, pane: ItemList, item: Item) -> None:
            super().__init__()
            self.pane = pane
            self.item = item

    def __init__(self, title: str, *, pane_id: str) -> None:
        super().__init__(title, pane_id=pane_id)
        self.items: tuple[Item, ...] = ()
        self.empty: Sequence[Line] = ()
        self.cursor_key: str | None = None
        self._moved = False
        """Whether the user has moved the cursor; until then it is on the first entry."""
        self._laid: list[tuple[str, Line]] = []

    def set_items(self, items: Sequence[Item], empty: Sequence[Line] = ()) -> None:
        """Show these entries; the cursor stays on its key once it was moved."""
        self.items = tuple(items)
        self.empty = empty
        if items and (not self._moved or all(item.key != self.cursor_key for item in items)):
            self.cursor_key = items[0].key
        self.paint()

    def start_at(self, key: str) -> None:
        """Put the cursor on an entry, which may not exist yet, and show the top."""
        self.top, self.cursor_key, self._moved = 0, key, True

    @property
    def current(self) -> Item | None:
        """The entry under the cursor."""
        return next((item for item in self.items if item.key == self.cursor_key), None)

    def prepare(self, width: int) -> int:
        """Wrap all entries."""
        self._laid = []
        for text in () if self.items else self.empty:
            self._laid += [("", part) for part in wrap(text, width)]
        for item in self.items:
            for text in item.lines:
                # On a narrow screen the text matters more than its indent.
                parts = wrap(text, width - 2, min(item.indent, width // 3))
                self._laid += [(item.key, part) for part in parts]
        return len(self._laid)

    def body_line(self, index: int, width: int) -> tuple[Line, str]:
        """Return one line of an entry; the first one carries the cursor's mark."""
        key, text = self._laid[index]
        if not key:
            return text, ""
        is_current = key == self.cursor_key
        first = index == 0 or self._laid[index - 1][0] != key
        mark = Span("▸ " if is_current and first else "  ", "focus")
        return (mark, *text), ("resting" if is_current and self.has_focus else "")

    def move(self, count: int) -> None:
        """Move the cursor by entries; the whole entry comes into view."""
        if not self.items:
            self.scroll_lines(count)
            return
        self._moved = True
        keys = [item.key for item in self.items]
        place = keys.index(self.cursor_key) if self.cursor_key in keys else 0
        self.cursor_key = keys[max(0, min(place + count, len(keys) - 1))]
        mine = [index for index, (key, _) in enumerate(self._laid) if key == self.cursor_key]
        if mine and self.page > 0:
            self.top = min(self.top, mine[0])
            self.top = max(self.top, mine[-1] - self.page + 1)
        self.paint()

    def move_end(self, direction: int) -> None:
        """Move to the first or last entry."""
        self.move(direction * max(len(self.items), 1))

    def open(self) -> None:
        """Do what Enter does."""
        if self.current is not None:
            self.post_message(self.Opened(self, self.current))

    def current_text(self) -> str:
        """Return what `y` copies: the entry's command, if it has one."""
        item = self.current
        if item is None:
            return super().current_text()
        return item.copied

    def text_lines(self) -> list[Line]:
        """Return all entries."""
        return [text for item in self.items for text in item.lines] or list(self.empty)
