"""Work with breaks: generators that yield where something else may have a turn.

A screen of thousands of ranks takes longer to put together than a key may wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

T = TypeVar("T")

PART = 500
"""Things that are looked at without a break, in about a millisecond."""


def at_once(work: Generator[None, None, T]) -> T:
    """Do the work without breaks; return what comes of it."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


def parts(things: Sequence[T], size: int = PART) -> Iterator[Sequence[T]]:
    """Yield all things in their order, so many at a time that a break after each is in time."""
    for begin in range(0, len(things), size):
        yield things[begin : begin + size]
