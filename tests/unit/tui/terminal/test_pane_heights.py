"""How rows of panes share the lines of a screen."""

from __future__ import annotations

import pytest

from hangtop.terminal.pane_heights import share

WEIGHTS = (4, 3, 5)


@pytest.mark.parametrize(
    ("wanted", "room", "lines"),
    [
        ((5, 5, 5), 40, None),  # the weights suit all
        ((30, 30, 30), 40, None),  # nobody has any to spare
        ((7, 6, 18), 40, [10, 8, 22]),  # one would scroll, and there is enough for all
        ((7, 6, 30), 40, [7, 6, 27]),
        ((7, 20, 30), 40, [7, 12, 21]),
        ((30, 20, 2), 40, [21, 17, 2]),
    ],
)
def test_none_scrolls_while_another_has_lines_to_spare(
    wanted: tuple[int, ...], room: int, lines: list[int] | None
) -> None:
    assert share(wanted, WEIGHTS, room) == lines
    assert lines is None or sum(lines) == room
