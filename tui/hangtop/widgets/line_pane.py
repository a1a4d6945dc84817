"""A framed pane of lines that repaints only what changed.

Textual's own lists repaint the whole widget when one cell changes; over a slow link a monitor that
does so falls seconds behind its own keys. This pane keeps the lines it painted, composes the
visible ones again on `paint`, and refreshes the part of each line that differs. It keeps its own
scroll offset instead of `ScrollView`'s so that scrolling goes through the same comparison.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.segment import Segment
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from hangtop.terminal.spans import (
    EMPTY,
    Line,
    Span,
    cells,
    crop,
    fit,
    holds,
    line,
    plain,
    plain_lines,
    twin,
)
from hangtop.terminal.theme import ROLES

if TYPE_CHECKING:
    from rich.style import Style

FRAMES: dict[str, tuple[str, ...]] = {
    "thin": ("┌", "─", "┐", "│", "└", "┘"),
    "heavy": ("┏", "━", "┓", "┃", "┗", "┛"),
    "ascii-thin": ("+", "-", "+", "|", "+", "+"),
    "ascii-heavy": ("#", "=", "#", "#", "#", "#"),
}
"""Corner, edge, corner, side, corner, corner: the frame of a focused pane differs in weight, not
only in colour.
"""


class LinePane(Widget, can_focus=True):
    """The base of every pane: a frame with a title, and lines inside it."""

    DEFAULT_CSS = "LinePane { height: 1fr; width: 1fr; overflow: hidden hidden; }"
    framed = True

    def __init__(self, title: str = "", *, pane_id: str) -> None:
        super().__init__(id=pane_id)
        self.heading: Line = line((title, "title"))
        self.note: Line = EMPTY
        """Right end of the top edge: ages, counts, silent nodes."""
        self.hint: Line = EMPTY
        """Right end of the bottom edge."""
        self.top = 0
        self._painted: list[tuple[Line, str]] = []

    @property
    def flat(self) -> bool:
        """Whether the app draws with ASCII characters only."""
        return bool(getattr(self.app, "ascii", False))

    # What subclasses say

    def prepare(self, width: int) -> int:
        """Prepare to be painted `width` cells wide; return the number of lines to scroll."""
        raise NotImplementedError

    def body_line(self, index: int, width: int) -> tuple[Line, str]:
        """Return line `index`, and the role laid over all of it."""
        raise NotImplementedError

    def header_line(self, width: int) -> Line | None:
        """Return a line that stays above the scrolled ones."""
        return None

    def text_lines(self) -> list[Line]:
        """Return everything in the pane, for copying and pagers."""
        raise NotImplementedError

    def current_text(self) -> str:
        """Return what `y` copies: the line under the cursor, or everything."""
        return plain_lines(self.text_lines())

    # Painting

    @property
    def inner_width(self) -> int:
        """Cells between the frame's sides and their padding."""
        return max(self.size.width - (4 if self.framed else 0), 0)

    @property
    def edge_room(self) -> int:
        """Cells for both texts of the top edge, where a line of the edge is left between them."""
        return max(self.size.width - 10, 0)

    @property
    def page(self) -> int:
        """The number of visible scrolled lines."""
        frame = 2 if self.framed else 0
        header = 1 if self.header_line(self.inner_width) is not None else 0
        return max(self.size.height - frame - header, 0)

    def retitle(self, heading: Line, note: Line = EMPTY, hint: Line = EMPTY) -> None:
        """Change the texts on the frame, drawn with the next `paint`."""
        self.heading, self.note, self.hint = heading, note, hint

    def paint(self) -> None:
        """Compose the visible lines again and refresh the parts that differ."""
        width, height = self.size
        if not width or not height:
            return
        lines = self._compose_lines(width, height)
        old = self._painted
        self._painted = lines
        if len(old) != len(lines):
            self.refresh()
            return
        changes = (
            _changed(before, after, y)
            for y, (before, after) in enumerate(zip(old, lines, strict=True))
            if before != after
        )
        if regions := list(changes):
            self.refresh(*regions)

    def _compose_lines(self, width: int, height: int) -> list[tuple[Line, str]]:
        total = self.prepare(self.inner_width)
        page = self.page
        rows = self._rows(total, page)
        lines = self._framed(rows, width, height, total, page) if self.framed else rows
        # A second time: cropping has added an ellipsis.
        return [(self._twin(text), role) for text, role in lines[:height]]

    def _rows(self, total: int, page: int) -> list[tuple[Line, str]]:
        """Return the visible lines inside the frame, each with the role laid over it."""
        inner = self.inner_width
        header = self.header_line(inner)
        self.top = max(0, min(self.top, total - page))
        rows: list[tuple[Line, str]] = [] if header is None else [(fit(header, inner), "")]
        for index in range(self.top, self.top + page):
            text, role = self.body_line(index, inner) if index < total else (EMPTY, "")
            rows.append((fit(self._twin(text), inner), role))
        return rows

    def shows(self, text: str) -> bool:
        """Return whether a text is in view as a whole, however its lines are broken."""
        rows = self._rows(self.prepare(self.inner_width), self.page)
        return holds([plain(self._twin(spans)) for spans, _ in rows], text)

    def _twin(self, text: Line) -> Line:
        return twin(text, flat=self.flat)

    def _framed(
        self, rows: list[tuple[Line, str]], width: int, height: int, total: int, page: int
    ) -> list[tuple[Line, str]]:
        focus = self.has_focus
        name = "heavy" if focus else "thin"
        left, edge, right, side, low_left, low_right = FRAMES[
            f"ascii-{name}" if self.flat else name
        ]
        role = "focus" if focus else "frame"
        hint = self.hint
        if total > page > 0:
            hint = line(hint, "  " if hint else "", self._position(total, page))
        lines = [(self._edge(left, edge, right, self.heading, self.note, width, role), "")]
        wall = Span(side, role)
        for text, over in rows[: height - 2]:
            lines.append(((wall, Span(" "), *_overlaid(text, over), Span(" "), wall), ""))
        lines.append((self._edge(low_left, edge, low_right, EMPTY, hint, width, role), ""))
        return lines[:height]

    def _position(self, total: int, page: int) -> Line:
        last = min(self.top + page, total)
        return line((f"{self.top + 1}-{last} of {total}", "label"))

    def _edge(
        self, start: str, edge: str, end: str, left: Line, right: Line, width: int, role: str
    ) -> Line:
        """Return one horizontal edge with a text at each end."""
        text_width = width - 4
        if text_width <= 0:
            return (Span((start + edge * max(width - 2, 0) + end)[:width], role),)
        left = crop(self._twin(left), text_width - 2)
        right = crop(self._twin(right), text_width - cells(left) - 5) if right else EMPTY
        spans = [Span(start + edge, role)]
        used = 2
        if left:
            spans += [Span(" "), *left, Span(" ")]
            used += cells(left) + 2
        tail = cells(right) + 2 if right else 0
        spans.append(Span(edge * max(width - used - tail - 2, 0), role))
        if right:
            spans += [Span(" "), *right, Span(" ")]
        return (*spans, Span(edge + end, role))

    def render_line(self, y: int) -> Strip:
        """Return a line that `paint` composed, in Textual's form."""
        if not self._painted or len(self._painted) != self.size.height:
            self._painted = self._compose_lines(*self.size)
        if y >= len(self._painted):
            return Strip.blank(self.size.width)
        text, _ = self._painted[y]
        return Strip([Segment(span.text, style_of(span.role)) for span in text])

    # Events

    def on_resize(self) -> None:
        """Compose for the new size."""
        self.paint()

    def watch_has_focus(self, has_focus: bool) -> None:
        """Draw a heavier frame while the pane has the focus."""
        super().watch_has_focus(has_focus)
        self.paint()

    def on_mouse_scroll_down(self) -> None:
        """Scroll with the wheel, when the mouse is on."""
        self.scroll_lines(3)

    def on_mouse_scroll_up(self) -> None:
        """Scroll with the wheel, when the mouse is on."""
        self.scroll_lines(-3)

    # Moving

    def scroll_lines(self, count: int) -> None:
        """Scroll by lines; `paint` limits it at the ends."""
        self.top = max(0, self.top + count)
        self.paint()

    def move(self, count: int) -> None:
        """Move up or down by lines; panes with a cursor move the cursor."""
        self.scroll_lines(count)

    def move_page(self, direction: int) -> None:
        """Move up or down by a page less one line."""
        self.move(direction * max(self.page - 1, 1))

    def move_end(self, direction: int) -> None:
        """Move to the first or the last line."""
        self.top = 0
        self.move(0 if direction < 0 else 1_000_000)


def _overlaid(text: Line, role: str) -> Line:
    if not role:
        return text
    return tuple(Span(span.text, f"{span.role}+{role}") for span in text)


def style_of(role: str) -> Style:
    """Return the style of a role, or of a role with an overlay: `bad+cursor`."""
    style = ROLES.get(role)
    if style is None:
        base, _, over = role.partition("+")
        style = ROLES.get(base, ROLES[""]) + ROLES.get(over, ROLES[""])
        ROLES[role] = style
    return style


def _changed(before: tuple[Line, str], after: tuple[Line, str], y: int) -> Region:
    """Return the part of a painted line that differs, span by span from both ends."""
    old, new = before[0], after[0]
    start = 0
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        start += cells((new[head],))
        head += 1
    end = cells(new)
    tail = 1
    while tail <= min(len(old), len(new)) - head and old[-tail] == new[-tail]:
        end -= cells((new[-tail],))
        tail += 1
    if cells(old) != cells(new):
        end = max(cells(old), cells(new))
    return Region(start, y, max(end - start, 1), 1)
