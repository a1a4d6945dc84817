"""Calculations that may take longer than a key may wait: made on a thread, the newest one kept."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
log = logging.getLogger(__name__)


class Later(Generic[T]):
    """The result of the newest calculation that has ended, and at most one that runs.

    All methods belong to the app's own thread, but for the calculation itself.
    """

    def __init__(self, ended: Callable[[], Any]) -> None:
        """`ended` is called on the thread of a calculation that has come to its end."""
        self._ended = ended
        self._running = False
        self._made: tuple[Any, T | None, str] | None = None
        """What it was made for, the result, and what went wrong instead."""

    def get(self, key: Any, work: Callable[[], T], quick: Callable[[], bool]) -> T | None:
        """The result for `key`, or None while it is being made.

        Args:
            key: what the result depends on; equal keys have equal results. It is kept, and with
                it whatever it holds.
            work: makes the result. Only looks at what never changes.
            quick: tells whether it is over so soon that it can be waited for.
        """
        if self._made is not None and self._made[0] == key:
            return self._made[1]
        if quick():
            self._run(key, work)
            return self._made[1] if self._made is not None else None
        if not self._running:
            self._running = True
            threading.Thread(target=self._apart, args=(key, work), daemon=True).start()
        return None

    @property
    def running(self) -> bool:
        """Whether something is being calculated."""
        return self._running

    @property
    def newest(self) -> T | None:
        """The newest result there is, whatever it was made for."""
        return self._made[1] if self._made is not None else None

    @property
    def wrong(self) -> str:
        """Why the newest calculation gave no result; empty when it did."""
        return self._made[2] if self._made is not None else ""

    def _apart(self, key: Any, work: Callable[[], T]) -> None:
        self._run(key, work)
        self._running = False
        self._ended()

    def _run(self, key: Any, work: Callable[[], T]) -> None:
        try:
            self._made = (key, work(), "")
        except Exception as error:  # the page says so; the others are not touched
            log.exception("a calculation for a page failed")
            self._made = (key, None, f"{type(error).__name__}: {error}")
