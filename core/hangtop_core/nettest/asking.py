"""Asking many nodes one thing at a time of a test, and waiting for all, while people may interrupt.

Nothing here judges; what fails is told by node, and never raised.
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
"""Seconds a process with torch, or an open port, may be there for at most."""
STEP_S = 0.2
"""Seconds of waiting after which what is waited for is told, and Ctrl-C is noticed."""


class Nodes:
    """The nodes of a session, as a test asks them."""

    def __init__(self, session: Session, tell: Callable[[str], None]) -> None:
        """``tell`` gets what is being done, in a few words, whenever that changes."""
        self._session = session
        self.tell = tell

    def each(
        self, asked: Mapping[str, Mapping[str, Any]], type_: type[T], what: str, seconds: float
    ) -> tuple[dict[str, list[T]], dict[str, str]]:
        """Ask nodes, each its own question; return pieces and failures by node."""
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
        return {node: some for node, some in pieces.items() if node not in failed}, failed

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
        """Ask one node; ``take`` gets pieces on the session's thread."""

        def piece(_: str, raw: Any) -> None:
            take(decode(raw, type_))

        ask = Ask("nettest", (), params, f"nettest: {what}", piece, seconds)
        return self._session.ask(node, ask, end)

    def stop(self, node: str, name: str) -> Future[Any]:
        """End something that is under way on a node."""
        params = {"do": "stop", "name": name}
        return self.start(node, params, object, "stop", 10.0, lambda _: None)

    def over(
        self, futures: Iterable[Future[Any]], seconds: float, what: str
    ) -> Iterable[Future[Any]]:
        """Yield futures as they are done, for so many seconds; says for how many one waits."""
        waiting = set(futures)
        whole, until = len(waiting), time.monotonic() + seconds
        while waiting and time.monotonic() < until:
            self.tell(f"{what}: {whole - len(waiting)} of {whole}")
            done, waiting = wait(waiting, STEP_S, FIRST_COMPLETED)
            yield from done


class Inbox(queue.SimpleQueue[Any]):
    """What comes on the session's thread, taken on the caller's."""

    def take(self, until: float) -> Any:
        """Return what comes next; None when nothing did for a moment, or in time."""
        left = until - time.monotonic()
        if left <= 0:
            return None
        try:
            return self.get(timeout=min(left, STEP_S))
        except queue.Empty:
            return None


def reason(error: BaseException) -> str:
    """Why a node did not do something, for people."""
    text = str(error) if isinstance(error, HangtopError) else f"{type(error).__name__}: {error}"
    return clean(text, 300)
