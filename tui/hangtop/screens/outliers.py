"""The common part of pages with `n` and `N`: going from outlier to outlier."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from hangtop.screens.page import Page
from hangtop.widgets.line_table import LineTable

if TYPE_CHECKING:
    from collections.abc import Sequence


class OutlierPage(Page):
    """A page with a pane whose rows may be outliers."""

    NONE_STANDS_OUT: ClassVar[tuple[str, str]]
    """The message where no row is an outlier, and its role."""
    STANDS_OUT: ClassVar[str] = "outlier {} of {}"
    """The message on an outlier: its place, and their number."""

    @property
    def rows(self) -> LineTable[Any]:
        """Return the pane with these rows, the first of the page."""
        return self.query_one(f"#{self.PANES[0]}", LineTable)

    def outliers(self) -> Sequence[str]:
        """Return the keys of the outliers, in the order of visit."""
        raise NotImplementedError

    def do_next_outlier(self) -> None:
        """Go to the next outlier."""
        self._go_to_outlier(1)

    def do_previous_outlier(self) -> None:
        """Go to the previous outlier."""
        self._go_to_outlier(-1)

    def _go_to_outlier(self, step: int) -> None:
        pane, keys = self.rows, self.outliers()
        if not keys:
            none = ("nothing is listed here", "warn")
            self.hangtop.tell(*(self.NONE_STANDS_OUT if pane.items else none))
            return
        here = pane.cursor_key
        place = (keys.index(here) + step) % len(keys) if here in keys else 0
        self.focus_pane(pane.id or self.PANES[0])
        pane.select(keys[place])
        self.hangtop.tell(self.STANDS_OUT.format(place + 1, len(keys)))
