"""Moving up and down in the pane that keys work on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hangtop.widgets.line_pane import LinePane


class Moving:
    """Mixin of pages; one method for each action, `do_<id>`."""

    @property
    def active_pane(self) -> LinePane | None:
        """The pane that keys work on."""
        raise NotImplementedError

    def _move(self, step: str, amount: int) -> None:
        pane = self.active_pane
        if pane is not None:
            getattr(pane, step)(amount)

    def do_up(self) -> None:
        """Move one line up."""
        self._move("move", -1)

    def do_down(self) -> None:
        """Move one line down."""
        self._move("move", 1)

    do_line_up = do_up
    do_line_down = do_down

    def do_page_up(self) -> None:
        """Move one page up."""
        self._move("move_page", -1)

    def do_page_down(self) -> None:
        """Move one page down."""
        self._move("move_page", 1)

    def do_home(self) -> None:
        """Move to the top."""
        self._move("move_end", -1)

    def do_end(self) -> None:
        """Move to the bottom."""
        self._move("move_end", 1)
