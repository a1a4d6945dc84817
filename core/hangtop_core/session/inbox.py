"""The queue of the session's thread: messages of nodes, and calls from other threads."""

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
    """A queue that any thread fills and one thread empties, in order per connection."""

    def __init__(self, goes_first: Callable[[Item], bool]) -> None:
        """Make a queue; ``goes_first`` decides on the taking thread which items precede others.

        Once it is false for a connection, it must never become true for it again.
        """
        self._goes_first = goes_first
        self._came: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._first: deque[Item] = deque()
        self._normal: deque[Item] = deque()
        self.put = self._came.put

    def take(self, timeout: float = 0.0, *, first_only: bool = False) -> Item | None:
        """Return the next item; None where none comes within ``timeout`` seconds.

        With ``first_only`` other items go on waiting.
        """
        until = time.monotonic() + timeout
        while True:
            while not self._came.empty():
                self._sort(self._came.get())
            if self._first:
                return self._first.popleft()
            if self._normal and not first_only:
                return self._normal.popleft()
            try:
                self._sort(self._came.get(timeout=max(until - time.monotonic(), 0.0)))
            except queue.Empty:
                return None

    def _sort(self, item: Item) -> None:
        (self._first if self._goes_first(item) else self._normal).append(item)

    @property
    def empty(self) -> bool:
        """Return whether the queue is empty."""
        return not (self._first or self._normal) and self._came.empty()
