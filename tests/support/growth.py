"""How work grows with its input, by lines of Python that run: the same on every machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.large import operations

if TYPE_CHECKING:
    from collections.abc import Callable

LINEAR, QUADRATIC = 2.0, 4.0
MOST = 2.2
"""The growth up to which work counts as linear."""
NOTHING = 400
"""Lines more or less that say nothing: a limit that is reached, a table that is made once."""
SHARE = 0.1
"""Part of all lines likewise, where most of the work is for what does not grow."""


def growth(work: Callable[[int], Callable[[], object]], size: int) -> float:
    """Return how much the work for twice as much again exceeds that for twice as much.

    It is 2 where each part of the input costs the same, and 4 where each costs as much as there are
    parts. ``work`` makes what is run for a size; making it is not counted.
    """
    work(size)()  # what is made once, is made
    once, twice, four_times = (operations(work(size * times)) for times in (1, 2, 4))
    return (four_times - twice) / max(twice - once, NOTHING, SHARE * twice)
