"""Sharing the lines of a screen among stacked panes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def share(wanted: Sequence[int], weights: Sequence[int], height: int) -> list[int] | None:
    """Return the height of each pane, so that no pane scrolls while another has unused lines.

    Args:
        wanted: lines that each pane would fill.
        weights: shares of ``height`` that apply as long as every pane fits.
        height: lines available in all.

    Returns:
        The lines of each pane; None where the weights suit all, or no pane has lines to spare.
    """
    total = sum(weights)
    if all(want * total <= height * weight for want, weight in zip(wanted, weights, strict=True)):
        return None
    lines, left = [0] * len(wanted), dict(enumerate(wanted))
    spare = height - sum(wanted)
    if spare >= 0:
        lines = [
            want + spare * weight // total for want, weight in zip(wanted, weights, strict=True)
        ]
        lines[-1] += height - sum(lines)
        return lines
    while fit := [i for i, want in left.items() if want * total <= height * weights[i]]:
        for i in fit:
            lines[i] = left.pop(i)
            height -= lines[i]
        total = sum(weights[i] for i in left)
    if len(left) == len(wanted):
        return None
    for i in left:
        lines[i] = height * weights[i] // total
    lines[max(left)] += height - sum(lines[i] for i in left)
    return lines
