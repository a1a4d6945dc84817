"""Interruptible work: generators that yield where other work may run.

Building a screen of thousands of ranks takes longer than a key may wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

T = TypeVar("T")

PART = 500
"""Number of items that are processed without a break, in about a millisecond."""


def at_once(work: Generator[None, None, T]) -> T:
    """Run the work without breaks, and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


def parts(things: Sequence[T], size: int = PART) -> Iterator[Sequence[T]]:
    """Yield all items in order, in slices small enough for a timely break after each."""
    for begin in range(0, len(things), size):
        yield things[begin : begin + size]
