"""Examining nodes once: connecting, measuring their clocks, and having them checked or cleaned.

Nothing is watched meanwhile, and no rank is touched.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from hangtop_core.attach.ways.local import LocalLauncher, boot_id
from hangtop_core.attach.wire.messages import BadPieceError, Time, decode
from hangtop_core.collect.requests import Ask, no_pieces
from hangtop_core.errors import HangtopError, NodeNotReadyError
from hangtop_core.model.node.check import Check, Cleaned, Clock, Examined, Way
from hangtop_core.model.node.states import FAILED, OBSERVED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hangtop_core.attach.connect.launcher import Launcher
    from hangtop_core.model.snapshot import Node
    from hangtop_core.session.session import Session

T = TypeVar("T")

CHECK_S = 90.0
"""Seconds a probe may take: most of it are the limits of tools that hang."""
PINGS = 3
LIMIT_S = 300.0
"""Seconds for all nodes, which log in by turns."""
_AGAIN = 2
"""How often a node is asked at most, when its connection breaks meanwhile."""


class Visits(Generic[T]):
    """Asks every node of a session one thing, once it is ready."""

    def __init__(self, session: Session, ask: Callable[[Session, str], Future[T]]) -> None:
        self.session = session
        self.answers: dict[str, T] = {}
        self.errors: dict[str, HangtopError] = {}
        self.nodes: dict[str, Node] = {}
        self._ask = ask
        self._open: dict[str, Future[T]] = {}
        self._asked: dict[str, int] = {}

    def run(self, progress: Callable[[Sequence[str]], None], limit: float = LIMIT_S) -> None:
        """Visit all nodes; ``progress`` gets the names of those that are not done yet.

        Ends as soon as each has answered or failed, or after ``limit`` seconds.
        """
        until = time.monotonic() + limit
        while time.monotonic() < until:
            self._look()
            waiting = [name for name, node in self.nodes.items() if not self._done(node)]
            progress(waiting)
            if self.nodes and not waiting:
                return
            self.session.wait(self._has_news, 0.2 if self._open else 1.0)

    def _look(self) -> None:
        """Take in states and answers, and ask who is ready."""
        update = self.session.latest
        for node in update.snapshot.nodes if update is not None else ():
            self.nodes[node.name] = node
        for name, future in list(self._open.items()):
            if future.done():
                del self._open[name]
                self._take(name, future)
        for name, node in self.nodes.items():
            if name not in self._open and self._due(node):
                self._asked[name] = self._asked.get(name, 0) + 1
                self._open[name] = self._ask(self.session, name)

    def _take(self, name: str, future: Future[T]) -> None:
        try:
            self.answers[name] = future.result()
            self.errors.pop(name, None)
        except HangtopError as error:
            self.errors[name] = error

    def _due(self, node: Node) -> bool:
        """Whether a node can be asked now, and should be."""
        return node.state in OBSERVED and not self._done(node)

    def _done(self, node: Node) -> bool:
        """Whether nothing more will come; one that was lost meanwhile gets a second chance."""
        name = node.name
        if name in self._open or name in self.answers:
            return name in self.answers
        if node.state in FAILED:
            return True
        lost = isinstance(self.errors.get(name), NodeNotReadyError)
        return name in self.errors and not (lost and self._asked[name] < _AGAIN)

    def _has_news(self, update: Any) -> bool:
        states = {node.name: node.state for node in update.snapshot.nodes}
        known = {name: node.state for name, node in self.nodes.items()}
        return states != known or any(future.done() for future in self._open.values())


class _Answer(msgspec.Struct, frozen=True):
    check: Check
    clock: Clock | None


def examine(
    session: Session,
    launchers: Sequence[Launcher],
    ways: Mapping[str, Future[Way]],
    progress: Callable[[Sequence[str]], None],
    limit: float = LIMIT_S,
) -> tuple[Examined, ...]:
    """Have every node checked; returns them in the order of ``launchers``.

    ``ways`` is what is known of the way to a node without logging in, by name.
    """
    visits = Visits(session, _check)
    try:
        visits.run(progress, limit)
    except KeyboardInterrupt:
        progress(())
    found = []
    for launcher in launchers:
        node = visits.nodes.get(launcher.node)
        if node is None:
            continue
        answer = visits.answers.get(node.name)
        error = visits.errors.get(node.name)
        found.append(
            Examined(
                node,
                isinstance(launcher, LocalLauncher),
                _known(ways.get(node.name)) if launcher.via == "ssh" else None,
                answer.check if answer is not None else None,
                _same_clock(node) or (answer.clock if answer is not None else None),
                str(error) if error is not None and answer is None else None,
            )
        )
    return tuple(found)


def clean_all(
    session: Session, progress: Callable[[Sequence[str]], None]
) -> tuple[dict[str, Cleaned], dict[str, str]]:
    """Have every node's cache removed; return what each said, and why others did not."""
    visits = Visits(session, _clean)
    visits.run(progress)
    failed = {
        name: str(visits.errors.get(name) or node.reason or node.state)
        for name, node in visits.nodes.items()
        if name not in visits.answers
    }
    return visits.answers, failed


def _known(future: Future[Way] | None) -> Way | None:
    if future is None:
        return None
    if not future.done():
        return Way("", 22, unresolved="no answer from the name service in time")
    return future.result() if future.exception() is None else None


def _same_clock(node: Node) -> Clock | None:
    if node.boot_id is not None and node.boot_id == boot_id():
        return Clock(0.0, 0.0, same=True)
    return None


def measure_clock(session: Session, node: str) -> Future[Clock | None]:
    """Ask a node some times what time it is; the best answer, None where none came."""
    found: Future[Clock | None] = Future()
    clocks: list[Clock] = []

    def ping(left: int) -> None:
        if left == 0:
            found.set_result(min(clocks, key=lambda clock: clock.within, default=None))
            return
        sent = time.time()

        def pong(future: Future[float]) -> None:
            if future.exception() is None:
                clocks.append(clock_between(sent, time.time(), future.result()))
            ping(left - 1 if future.exception() is None else 0)

        session.ask(node, _PING, _clock_of).add_done_callback(pong)

    ping(PINGS)
    return found


def _check(session: Session, node: str) -> Future[_Answer]:
    """Measure the clock, then check; the check alone decides whether it worked."""
    found: Future[_Answer] = Future()

    def check(clock: Future[Clock | None]) -> None:
        pieces: list[Check] = []
        ask = Ask(
            "check",
            (),
            {},
            "try ptrace, py-spy and gdb on processes of hangtop's own",
            lambda _, raw: pieces.append(decode(raw, Check)),
            CHECK_S,
        )

        def whole(_: object) -> _Answer:
            if not pieces:
                raise BadPieceError("nothing came")
            return _Answer(pieces[0], clock.result())

        session.ask(node, ask, whole).add_done_callback(lambda future: _pass_on(future, found))

    measure_clock(session, node).add_done_callback(check)
    return found


def _pass_on(source: Future[T], target: Future[T]) -> None:
    error = source.exception()
    if error is not None:
        target.set_exception(error)
    else:
        target.set_result(source.result())


def _clean(session: Session, node: str) -> Future[Cleaned]:
    ask = Ask("clean", (), {}, "remove hangtop's cache", no_pieces, CHECK_S)
    return session.ask(node, ask, lambda said: decode(said, Cleaned))


def clock_between(sent: float, received: float, there: float) -> Clock:
    """Return how far a clock is ahead that was read between two moments of ours.

    It was read after ``sent`` and before ``received``, so the middle is wrong by half of that at
    most, however long the way is.
    """
    half = max(0.0, received - sent) / 2
    return Clock(round(there - (sent + half), 6), round(half, 6))


class _Pong(msgspec.Struct, frozen=True):
    clock: Time


def _clock_of(said: object) -> float:
    return decode(said, _Pong).clock


_PING = Ask("ping", (), {}, "ask for its clock", no_pieces, 10.0)
