"""The bridge between the source's thread and the app's event loop: updates and requests."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any

from hangtop.source.messages import Answered, TraceLines, Updated
from hangtop_core.scheduling.ui_priority import SCREENS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual.message import Message

    from hangtop.source.source import Source
    from hangtop_core.model.updates import Update


class Bridge:
    """Turns callbacks of the source into messages of the app; neither side ever waits."""

    def __init__(self, source: Source, post: Callable[[Message], Any]) -> None:
        self._source = source
        self._post = post
        self._unsubscribe: Callable[[], None] | None = None
        self._lock = threading.Lock()
        self._waiting: Update | None = None

    def start(self) -> None:
        """Begin to forward updates, with the newest one at once."""
        self._unsubscribe = self._source.subscribe(self._updated, unjudged=True)
        if self._source.latest is not None:
            self._updated(self._source.latest)

    def stop(self) -> None:
        """Stop forwarding."""
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None

    def _updated(self, update: Update) -> None:
        with self._lock:
            pending, self._waiting = self._waiting is not None, update
        if not pending:
            SCREENS.handed()
            self._post(Updated())

    def taken(self) -> Update | None:
        """Return the newest update, once; until it is taken, no other message is posted.

        So updates do not pile up, for example while a shell has the terminal.
        """
        with self._lock:
            update, self._waiting = self._waiting, None
        return update

    def traced(self, lines: Sequence[str]) -> None:
        """Forward lines of a running trace."""
        self._post(TraceLines(lines))

    def ask(
        self, kind: str, label: str, request: Callable[[], Future[Any]], about: str = ""
    ) -> None:
        """Make a request; its outcome comes back as an `Answered` message."""
        try:
            future = request()
        except Exception as error:  # the user sees the error, and the app goes on
            self._post(Answered(kind, label, None, error, about))
            return
        future.add_done_callback(lambda done: self._answered(kind, label, done, about))

    def _answered(self, kind: str, label: str, future: Future[Any], about: str) -> None:
        error = CancelledError() if future.cancelled() else future.exception()
        self._post(Answered(kind, label, None if error else future.result(), error, about))
