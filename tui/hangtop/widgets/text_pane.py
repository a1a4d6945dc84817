"""A pane of running text: wrapped to its width, scrolled by lines, without a cursor."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from hangtop.terminal.spans import EMPTY, Line, cells, wrap
from hangtop.widgets.line_pane import LinePane

if TYPE_CHECKING:
    from collections.abc import Sequence


class TextPane(LinePane):
    """Lines of text; long ones are wrapped under an indent, or cut when `wrapped` is off."""

    def __init__(
        self,
        title: str,
        *,
        pane_id: str,
        wrapped: bool = True,
        indent: int = 0,
    ) -> None:
        super().__init__(title, pane_id=pane_id)
        self.wrapped = wrapped
        self.indent = indent
        self.follow = False
        """Whether the end is kept in view while lines are added."""
        self._lines: tuple[Line, ...] = ()
        self._laid: list[Line] = []
        self._begins: list[int] = []
        """Where each line begins among the laid-out lines."""
        self._laid_for: tuple[int, tuple[Line, ...], bool] | None = None

    def set_lines(self, lines: Sequence[Line]) -> None:
        """Show these lines."""
        self._lines = tuple(lines)
        if self.follow:
            self.top = 1_000_000  # beyond any end: painting takes the last page instead
        self.paint()

    def prepare(self, width: int) -> int:
        """Wrap the text after a change of text or width; of a longer text only the new lines."""
        wanted = (width, self._lines, self.wrapped)
        if self._laid_for != wanted:
            kept = self._as_before(wanted)
            self._laid_for = wanted
            del self._laid[self._begins[kept] if kept < len(self._begins) else len(self._laid) :]
            del self._begins[kept:]
            for item in self._lines[kept:]:
                self._begins.append(len(self._laid))
                if self.wrapped and cells(item) > width:
                    self._laid += wrap(item, width, self._indent_of(item))
                else:
                    self._laid.append(item)
        return len(self._laid)

    def _as_before(self, wanted: tuple[int, tuple[Line, ...], bool]) -> int:
        """Return how many lines, from the first on, are still laid out correctly."""
        if self._laid_for is None or (self._laid_for[0], self._laid_for[2]) != wanted[::2]:
            return 0
        pairs = enumerate(zip(self._laid_for[1], wanted[1], strict=False))
        shorter = min(len(self._laid_for[1]), len(wanted[1]))
        return next((at for at, (old, new) in pairs if old is not new), shorter)

    def _indent_of(self, item: Line) -> int:
        """Return the indent of wrapped parts: a labelled line's value, else text plus `indent`.

        Keys in a column are labels, too; possible ones are drawn unlike the others.
        """
        column = item[0].text.endswith(" ") and item[0].role in ("key", "off") if item else False
        if item and (column or item[0].role == "label"):
            return cells(item[:1])
        text = "".join(span.text for span in item)
        return len(text) - len(text.lstrip(" ")) + self.indent

    def show_line(self, index: int) -> None:
        """Bring a line into view, with two above it."""
        self.prepare(self.inner_width)
        if index < len(self._begins):
            self.top = max(self._begins[index] - 2, 0)
            self.paint()

    def first_shown(self) -> int:
        """Return the line that `show_line` would have put where the view is."""
        self.prepare(self.inner_width)
        return max(bisect_right(self._begins, self.top + 2) - 1, 0)

    def body_line(self, index: int, width: int) -> tuple[Line, str]:
        """Return one laid-out line."""
        return (self._laid[index] if index < len(self._laid) else EMPTY), ""

    def text_lines(self) -> list[Line]:
        """Return the lines as they were given, not as they were wrapped."""
        return list(self._lines)
