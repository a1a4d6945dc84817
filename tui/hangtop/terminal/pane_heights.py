"""How panes above one another share the lines of a screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def share(wanted: Sequence[int], weights: Sequence[int], room: int) -> list[int] | None:
    """Lines for each, so that none scrolls while another has lines to spare.

    Args:
        wanted: lines that each would fill.
        weights: how they share ``room`` as long as that suits all.
        room: lines that there are.

    Returns:
        The lines of each; None where the weights suit all, or nobody has any to spare.
    """
    total = sum(weights)
    if all(want * total <= room * one for want, one in zip(wanted, weights, strict=True)):
        return None
    lines, left = [0] * len(wanted), dict(enumerate(wanted))
    spare = room - sum(wanted)
    if spare >= 0:
        lines = [want + spare * one // total for want, one in zip(wanted, weights, strict=True)]
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
