"""A grid of one character per rank, in rows that fold where nothing differs."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from hangtop.terminal.spans import Line, Span, line
from hangtop.widgets.line_pane import LinePane
from hangtop_core.text.clean import plural
from hangtop_core.text.rank_sets import fold, rank_label

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hangtop.terminal.spans import Part

WIDEST = 64
"""Largest number of ranks in one row: the eye counts to sixteen, four times."""
GAP = 8
"""Ranks between two blanks."""


class GridPane(LinePane):
    """Ranks with the mark of their state; equal full rows become one line."""

    def __init__(
        self,
        title: str,
        *,
        pane_id: str,
        marks: Mapping[str, tuple[str, str]],
        plain: frozenset[str],
    ) -> None:
        """Create it; `marks` has character and role of each state; only `plain` states may fold."""
        super().__init__(title, pane_id=pane_id)
        self._marks = marks
        self._plain = plain
        self._cells: Sequence[tuple[int, str]] = ()
        self._lines: list[Line] = []
        self._laid_for: tuple[int, int, Sequence[tuple[int, str]]] | None = None

    def set_cells(self, cells: Sequence[tuple[int, str]]) -> None:
        """Show these ranks, each with its state."""
        self._cells = cells
        self.paint()

    def prepare(self, width: int) -> int:
        """Lay out the rows, when the ranks or the width have changed."""
        wanted = (width, self.page, self._cells)
        if self._laid_for is None or self._laid_for != wanted:
            self._laid_for = wanted
            self._lines = self._lay(width)
        return len(self._lines)

    def _lay(self, width: int) -> list[Line]:
        label = 2 * max((len(str(rank)) for rank, _ in self._cells), default=1) + 3
        count = WIDEST
        while count > GAP and label + count + count // GAP > width:
            count -= GAP
        parts = [self._cells[at : at + count] for at in range(0, len(self._cells), count)]
        if len(parts) <= self.page:
            return [self._row(part, label) for part in parts]
        lines: list[Line] = []
        for state, group in groupby(parts, self._alike):
            rows = list(group)
            if state is None or len(rows) == 1:
                lines += [self._row(part, label) for part in rows]
            else:
                lines.append(self._folded([cell for part in rows for cell in part], state, label))
        return lines

    def _alike(self, part: Sequence[tuple[int, str]]) -> str | None:
        """Return the one state of a row that may fold; None for any other row."""
        states = {state for _, state in part}
        return states.pop() if len(states) == 1 and states <= self._plain else None

    def _row(self, part: Sequence[tuple[int, str]], label: int) -> Line:
        spans: list[Part] = [(f"{_ends(part):<{label}}", "label")]
        for at in range(0, len(part), GAP):
            for state, group in groupby(part[at : at + GAP], lambda cell: cell[1]):
                mark, role = self._marks[state]
                spans.append((mark * len(list(group)), role))
            spans.append(" ")
        return line(*spans)

    def _folded(self, part: Sequence[tuple[int, str]], state: str, label: int) -> Line:
        mark, role = self._marks[state]
        count = f" {plural(len(part), 'rank')}"
        return line((f"{_ends(part):<{label}}", "label"), (mark * GAP, role), ("⋯", "dim"), count)

    def body_line(self, index: int, width: int) -> tuple[Line, str]:
        """Return one row."""
        return self._lines[index], ""

    def text_lines(self) -> list[Line]:
        """Return the ranks of each state: the marks of the screen are of no use elsewhere."""
        by_state: dict[str, list[int]] = {}
        for rank, state in self._cells:
            by_state.setdefault(state, []).append(rank)
        return [(Span(f"{state}: {fold(ranks)}"),) for state, ranks in by_state.items()]


def _ends(part: Sequence[tuple[int, str]]) -> str:
    first, last = part[0][0], part[-1][0]
    return "-".join(dict.fromkeys((rank_label(first), rank_label(last))))
