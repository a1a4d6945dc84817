"""UI priority: other threads wait while the thread that draws the screens has work.

Python gives the interpreter to one thread at a time, and a waiting thread gets a share at best.
While updates of thousands of ranks were processed, three milliseconds of work for a key took
eighty.
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
"""Maximum seconds that a thread waits; then it works for as long as it has waited."""


class UiPriority:
    """Priority of one thread over all others."""

    def __init__(self) -> None:
        self._rests = threading.Event()
        self._rests.set()
        self._first: int | None = None
        self._until = 0.0

    def begin(self) -> None:
        """Note, on the thread with priority, that it has work."""
        self._first = threading.get_ident()
        self._rests.clear()

    def handed(self) -> None:
        """Note, on another thread, that the thread with priority is about to get work."""
        if self._first is not None:
            self._rests.clear()

    def rest(self, limit_s: float) -> None:
        """Wait until the thread with priority has no work, for ``limit_s`` seconds at most."""
        self._rests.wait(limit_s)

    def end(self) -> None:
        """Note that the thread with priority waits for work."""
        self._rests.set()

    def give_way(self) -> None:
        """Wait while the thread with priority has work, for half of the time at most."""
        if self._rests.is_set() or threading.get_ident() == self._first:
            return
        began = time.monotonic()
        if began >= self._until:
            self._rests.wait(MOST_S)
            ended = time.monotonic()
            self._until = ended + (ended - began)

    def between(self, things: Sequence[T], size: int = PART) -> Iterator[T]:
        """Return all items in order, and give way before each slice of ``size`` items."""
        return chain.from_iterable(self._parts(things, size))

    def _parts(self, things: Sequence[T], size: int) -> Iterator[Sequence[T]]:
        for slice_ in parts(things, size):
            self.give_way()
            yield slice_


SCREENS = UiPriority()
"""Priority of the thread that draws; where nothing is drawn no thread waits."""
