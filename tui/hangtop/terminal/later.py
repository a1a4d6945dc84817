"""Calculations that may take longer than a key may wait: run on a thread, newest result kept."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
log = logging.getLogger(__name__)


class Later(Generic[T]):
    """The result of the newest finished calculation; at most one runs at a time.

    Call all methods on the app's own thread; only the calculation itself runs on another.
    """

    def __init__(self, ended: Callable[[], Any]) -> None:
        """Create it; `ended` is called on the calculation's thread when a calculation has ended."""
        self._ended = ended
        self._running = False
        self._made: tuple[Any, T | None, str] | None = None
        """The key of the last calculation, its result, and the error instead of a result."""

    def get(self, key: Any, work: Callable[[], T], quick: Callable[[], bool]) -> T | None:
        """Return the result for `key`, or None while it is being calculated.

        Args:
            key: what the result depends on; equal keys have equal results. The key is kept, and
                with it everything it refers to.
            work: calculates the result from immutable data only.
            quick: returns whether the work is short enough to wait for.
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
        """Whether a calculation is running."""
        return self._running

    @property
    def newest(self) -> T | None:
        """The newest result available, whatever its key."""
        return self._made[1] if self._made is not None else None

    @property
    def wrong(self) -> str:
        """The reason why the newest calculation failed; empty when it succeeded."""
        return self._made[2] if self._made is not None else ""

    def _apart(self, key: Any, work: Callable[[], T]) -> None:
        self._run(key, work)
        self._running = False
        self._ended()

    def _run(self, key: Any, work: Callable[[], T]) -> None:
        try:
            self._made = (key, work(), "")
        except Exception as error:  # the page shows it; other pages are not affected
            log.exception("a calculation for a page failed")
            self._made = (key, None, f"{type(error).__name__}: {error}")
