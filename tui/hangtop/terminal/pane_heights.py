"""Sharing the lines of a screen among stacked panes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def share(wanted: Sequence[int], weights: Sequence[int], room: int) -> list[int] | None:
    """Return the height of each pane, so that no pane scrolls while another has unused lines.

    Args:
        wanted: lines that each pane would fill.
        weights: shares of ``room`` that apply as long as every pane fits.
        room: lines available in all.

    Returns:
        The lines of each pane; None where the weights suit all, or no pane has lines to spare.
    """
    total = sum(weights)
    if all(want * total <= room * weight for want, weight in zip(wanted, weights, strict=True)):
        return None
    lines, left = [0] * len(wanted), dict(enumerate(wanted))
    spare = room - sum(wanted)
    if spare >= 0:
        lines = [
            want + spare * weight // total for want, weight in zip(wanted, weights, strict=True)
        ]
        lines[-1] += room - sum(lines)
        return lines
    while fit := [i for i, want in left.items() if want * total <= room * weights[i]]:
        for i in fit:
            lines[i] = left.pop(i)
            room -= lines[i]
        total = sum(weights[i] for i in left)
    if len(left) == len(wanted):
        return None
    for i in left:
        lines[i] = room * weights[i] // total
    lines[max(left)] += room - sum(lines[i] for i in left)
    return lines
