"""Requests of the network test to many nodes at once, with a wait that Ctrl-C interrupts.

Nothing here judges; failures are returned by node, and never raised.
"""

from __future__ import annotations

import queue
import time
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TYPE_CHECKING, Any, TypeVar

from hangtop_core.attach.wire.messages import decode
from hangtop_core.collect.requests import Ask
from hangtop_core.errors import HangtopError
from hangtop_core.text.clean import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from hangtop_core.session.session import Session

T = TypeVar("T")
LONG_S = 3600.0
"""Maximum lifetime in seconds of a process with torch, or of an open port."""
STEP_S = 0.2
"""Seconds between progress messages during a wait; Ctrl-C is noticed then."""


class Nodes:
    """The nodes of a session, for a test."""

    def __init__(self, session: Session, tell: Callable[[str], None]) -> None:
        """Ask through a session; ``tell`` gets short progress messages."""
        self._session = session
        self.tell = tell

    def each(
        self, asked: Mapping[str, Mapping[str, Any]], type_: type[T], what: str, seconds: float
    ) -> tuple[dict[str, list[T]], dict[str, str]]:
        """Ask each node its own question; return answers and failures by node."""
        pieces: dict[str, list[T]] = {node: [] for node in asked}
        futures = {
            self.start(node, params, type_, what, seconds, pieces[node].append): node
            for node, params in asked.items()
        }
        failed: dict[str, str] = {}
        for future in self.over(futures, seconds + 5.0, what):
            error = future.exception()
            if error is not None:
                failed[futures[future]] = reason(error)
        for future, node in futures.items():
            if not future.done():
                failed[node] = f"no answer in {seconds:g} s"
        return {node: received for node, received in pieces.items() if node not in failed}, failed

    def start(
        self,
        node: str,
        params: Mapping[str, Any],
        type_: type[T],
        what: str,
        seconds: float,
        take: Callable[[T], None],
        end: Callable[[Any], Any] = lambda _: None,
    ) -> Future[Any]:
        """Ask one node; ``take`` gets answers on the session's thread."""

        def piece(_: str, raw: Any) -> None:
            take(decode(raw, type_))

        ask = Ask("nettest", (), params, f"nettest: {what}", piece, seconds)
        return self._session.ask(node, ask, end)

    def stop(self, node: str, name: str) -> Future[Any]:
        """End a running request on a node."""
        params = {"do": "stop", "name": name}
        return self.start(node, params, object, "stop", 10.0, lambda _: None)

    def over(
        self, futures: Iterable[Future[Any]], seconds: float, what: str
    ) -> Iterable[Future[Any]]:
        """Yield futures as they complete, for at most ``seconds``; report the progress."""
        waiting = set(futures)
        whole, until = len(waiting), time.monotonic() + seconds
        while waiting and time.monotonic() < until:
            self.tell(f"{what}: {whole - len(waiting)} of {whole}")
            done, waiting = wait(waiting, STEP_S, FIRST_COMPLETED)
            yield from done


class Inbox(queue.SimpleQueue[Any]):
    """A queue from the session's thread to the caller's."""

    def take(self, until: float) -> Any:
        """Return the next item; None after a moment without any, or after ``until``."""
        left = until - time.monotonic()
        if left <= 0:
            return None
        try:
            return self.get(timeout=min(left, STEP_S))
        except queue.Empty:
            return None


def reason(error: BaseException) -> str:
    """Return for people why a node failed."""
    text = str(error) if isinstance(error, HangtopError) else f"{type(error).__name__}: {error}"
    return clean(text, 300)
