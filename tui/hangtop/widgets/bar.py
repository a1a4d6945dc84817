"""One unframed line: headline, tabs, crumbs, footer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop.terminal.spans import EMPTY, Line
from hangtop.widgets.line_pane import LinePane

if TYPE_CHECKING:
    from collections.abc import Callable


class Bar(LinePane, can_focus=False):
    """A line that is made for the width it gets."""

    DEFAULT_CSS = "Bar { height: 1; }"
    framed = False

    def __init__(self, *, pane_id: str) -> None:
        super().__init__(pane_id=pane_id)
        self._make: Callable[[int], Line] = lambda width: EMPTY

    def show(self, make: Callable[[int], Line]) -> None:
        """Show the result of `make` for the present width, now and after resizing."""
        self._make = make
        self.paint()

    def prepare(self, width: int) -> int:
        """Return the number of lines: one."""
        return 1

    def body_line(self, index: int, width: int) -> tuple[Line, str]:
        """Return the line."""
        return self._make(width), ""

    def text_lines(self) -> list[Line]:
        """Return the line, at a generous width."""
        return [self._make(200)]
