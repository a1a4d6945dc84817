"""Updating a page in turns, between which keys are handled."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TURN_S = 0.005
"""Seconds of filling panes after which a waiting key is handled. A small job takes one turn."""
PAUSE_S = 0.005
"""Seconds between two turns. A key passes from the app to the page, the pane and back, each a task
of its own, so that it needs several rounds of the loop. A message to the app alone would be no
pause: it handles all its messages in one go, before any keys.
"""


class Filled(Protocol):
    """A page that is filled pane by pane."""

    @property
    def is_shown(self) -> bool:
        """Whether this is the page that is seen."""

    def steps(self) -> Iterator[None]:
        """Fill the panes, with breaks in which a key may be answered."""

    def show_bars(self) -> None:
        """Fill the bars."""


class Turns:
    """The turns of one page; ``soon`` does the next turn, after waiting keys."""

    def __init__(self, page: Filled, soon: Callable[[Callable[[], object]], None]) -> None:
        self._page, self._soon = page, soon
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
        if filling is None or not page.is_shown:
            self.stop()
            return
        for _ in filling:
            if perf_counter() > until:
                self._soon(self._take)
                return
        self._filling = None
        page.show_bars()
        if self._newer:
            self.begin()
