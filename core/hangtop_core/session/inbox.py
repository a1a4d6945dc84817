"""What waits for the session's thread: what nodes have said, and what is to be done there."""

from __future__ import annotations

import queue
import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangtop_core.attach.connect.engine import Event

    Item = Event | Callable[[], None]


class Inbox:
    """Any thread puts things in; one takes them out, of each connection in order."""

    def __init__(self, goes_first: Callable[[Item], bool]) -> None:
        """``goes_first`` tells, on the thread that takes, what is taken before the rest.

        Once it does not hold for a connection any more, it never may again.
        """
        self._goes_first = goes_first
        self._came: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._first: deque[Item] = deque()
        self._others: deque[Item] = deque()
        self.put = self._came.put

    def take(self, timeout: float = 0.0, *, first_only: bool = False) -> Item | None:
        """Return the next one; None where none comes within ``timeout`` seconds.

        With ``first_only`` the rest goes on waiting.
        """
        until = time.monotonic() + timeout
        while True:
            while not self._came.empty():
                self._sort(self._came.get())
            if self._first:
                return self._first.popleft()
            if self._others and not first_only:
                return self._others.popleft()
            try:
                self._sort(self._came.get(timeout=max(until - time.monotonic(), 0.0)))
            except queue.Empty:
                return None

    def _sort(self, item: Item) -> None:
        (self._first if self._goes_first(item) else self._others).append(item)

    @property
    def empty(self) -> bool:
        """Whether nothing waits."""
        return not (self._first or self._others) and self._came.empty()
