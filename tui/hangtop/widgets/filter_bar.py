"""The input line of a filter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.message import Message
from textual.widgets import Input

if TYPE_CHECKING:
    from textual import events
    from textual.widget import Widget


class FilterBar(Input):
    """Shown by `/`, hidden by Enter or Esc; the focus then returns to its previous place."""

    DEFAULT_CSS = """
    FilterBar { height: 1; border: none; padding: 0 1; display: none; }
    FilterBar:focus { border: none; }
    """

    class Left(Message):
        """Esc was pressed."""

    def __init__(self) -> None:
        super().__init__(
            id="filter", placeholder="text, 3-7, state=stopped, node~gpu, idle>60", compact=True
        )
        self._back: Widget | None = None

    def open(self, text: str) -> None:
        """Show the line with the current filter."""
        if not self.display:  # else it has the focus already
            self._back = self.screen.focused
        self.display = True
        with self.prevent(Input.Changed):
            self.value = text
        self.focus()

    def close(self) -> None:
        """Hide the line."""
        self.display = False
        self.screen.set_focus(self._back)

    def on_key(self, event: events.Key) -> None:
        """Leave without a filter on Esc."""
        if event.key == "escape":
            event.stop()
            event.prevent_default()
            self.post_message(self.Left())
