"""Updating a page in turns, between which keys are handled."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hangtop.screens.page import Page

TURN_S = 0.005
"""Seconds of filling panes after which a waiting key is handled. A small job takes one turn."""
PAUSE_S = 0.005
"""Seconds between two turns. A key passes from the app to the page, the pane and back, each a task
of its own, so that it needs several rounds of the loop. A message to the app alone would be no
pause: it handles all its messages in one go, before any keys.
"""


class Turns:
    """The turns of one page."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._filling: Iterator[None] | None = None
        self._newer = False

    def begin(self) -> None:
        """Fill the page; if that is under way, a newer update waits until it is done."""
        self._newer = self._filling is not None
        if self._filling is None:
            self._filling = self._page.steps()
            self._take()

    def stop(self) -> None:
        """Stop: the page was filled as a whole, or is not shown."""
        self._filling, self._newer = None, False

    def _take(self) -> None:
        page, filling, until = self._page, self._filling, perf_counter() + TURN_S
        if filling is None or not page.is_mounted or page.hangtop.page is not page:
            self.stop()
            return
        for _ in filling:
            if perf_counter() > until:
                page.hangtop.soon(self._take)
                return
        self._filling = None
        page.show_bars()
        if self._newer:
            self.begin()
