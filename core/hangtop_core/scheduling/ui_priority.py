"""Who goes first: other threads wait while the one that draws the screens has something to do.

Python gives the interpreter to one thread at a time, and who waits for it gets a share at best.
While what thousands of ranks say was taken in, three milliseconds of work for a key took eighty.
"""

from __future__ import annotations

import threading
import time
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from hangtop_core.scheduling.interruptible import PART, parts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

T = TypeVar("T")

MOST_S = 0.03
"""Seconds that one waits at most; then it works for as long as it has waited."""


class Precedence:
    """Of one thread before all others."""

    def __init__(self) -> None:
        self._rests = threading.Event()
        self._rests.set()
        self._first: int | None = None
        self._until = 0.0

    def begin(self) -> None:
        """Note, on the thread that goes first, that it has something to do."""
        self._first = threading.get_ident()
        self._rests.clear()

    def handed(self) -> None:
        """Note, on another thread, that the first one is about to get something to do."""
        if self._first is not None:
            self._rests.clear()

    def rest(self, most_s: float) -> None:
        """Wait until the first thread has nothing to do, for so many seconds at most."""
        self._rests.wait(most_s)

    def end(self) -> None:
        """Note that it waits for something to do."""
        self._rests.set()

    def give_way(self) -> None:
        """Wait while the first thread has something to do, for half of the time at most."""
        if self._rests.is_set() or threading.get_ident() == self._first:
            return
        began = time.monotonic()
        if began >= self._until:
            self._rests.wait(MOST_S)
            ended = time.monotonic()
            self._until = ended + (ended - began)

    def between(self, things: Sequence[T], some: int = PART) -> Iterator[T]:
        """Return all things in their order, and give way before each ``some`` of them."""
        return chain.from_iterable(self._parts(things, some))

    def _parts(self, things: Sequence[T], size: int) -> Iterator[Sequence[T]]:
        for some in parts(things, size):
            self.give_way()
            yield some


SCREENS = Precedence()
"""Of the thread that draws; where nothing is drawn nobody waits."""
