"""One-time examination of nodes: connecting, measuring their clocks, checking or cleaning them.

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
"""Seconds that a check may take: mostly the time limits of tools that hang."""
PINGS = 3
LIMIT_S = 300.0
"""Seconds for all nodes, which log in by turns."""
_AGAIN = 2
"""Maximum requests to a node whose connection breaks meanwhile."""


class Visits(Generic[T]):
    """Makes one request to every node of a session, once it is ready."""

    def __init__(self, session: Session, ask: Callable[[Session, str], Future[T]]) -> None:
        self.session = session
        self.answers: dict[str, T] = {}
        self.errors: dict[str, HangtopError] = {}
        self.nodes: dict[str, Node] = {}
        self._ask = ask
        self._open: dict[str, Future[T]] = {}
        self._asked: dict[str, int] = {}

    def run(self, progress: Callable[[Sequence[str]], None], limit: float = LIMIT_S) -> None:
        """Visit all nodes; ``progress`` gets the names of the unfinished ones.

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
        """Take in states and answers, and make requests to ready nodes."""
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
        """Return whether a node can be asked now, and should be."""
        return node.state in OBSERVED and not self._done(node)

    def _done(self, node: Node) -> bool:
        """Return whether a node is finished; one that was lost meanwhile gets a second chance."""
        name = node.name
        if name in self._open or name in self.answers:
            return name in self.answers
        if node.state in FAILED:
            return True
        lost = isinstance(self.errors.get(name), NodeNotReadyError)
        return name in self.errors and not (lost and self._asked[name] < _AGAIN)

    def _has_news(self, update: Any) -> bool:
        states = {node.name: node.state for node in update.snapshot.nodes}
        old_states = {name: node.state for name, node in self.nodes.items()}
        return states != old_states or any(future.done() for future in self._open.values())


class _Answer(msgspec.Struct, frozen=True):
    check: Check
    clock: Clock | None


def examine(
    session: Session,
    launchers: Sequence[Launcher],
    paths: Mapping[str, Future[Way]],
    progress: Callable[[Sequence[str]], None],
    limit: float = LIMIT_S,
) -> tuple[Examined, ...]:
    """Have every node checked; return the results in the order of ``launchers``.

    ``paths`` has the results of connecting to a node without logging in, by name.
    """
    visits = Visits(session, _check)
    try:
        visits.run(progress, limit)
    except KeyboardInterrupt:
        progress(())
    results = []
    for launcher in launchers:
        node = visits.nodes.get(launcher.node)
        if node is None:
            continue
        answer = visits.answers.get(node.name)
        error = visits.errors.get(node.name)
        results.append(
            Examined(
                node,
                isinstance(launcher, LocalLauncher),
                _way_result(paths.get(node.name)) if launcher.via == "ssh" else None,
                answer.check if answer is not None else None,
                _same_clock(node) or (answer.clock if answer is not None else None),
                str(error) if error is not None and answer is None else None,
            )
        )
    return tuple(results)


def clean_all(
    session: Session, progress: Callable[[Sequence[str]], None]
) -> tuple[dict[str, Cleaned], dict[str, str]]:
    """Have every node's cache removed; return the answers, and the reasons of failures."""
    visits = Visits(session, _clean)
    visits.run(progress)
    failed = {
        name: str(visits.errors.get(name) or node.reason or node.state)
        for name, node in visits.nodes.items()
        if name not in visits.answers
    }
    return visits.answers, failed


def _way_result(future: Future[Way] | None) -> Way | None:
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
    """Measure a node's clock several times; return the best result, None without an answer."""
    result: Future[Clock | None] = Future()
    clocks: list[Clock] = []

    def ping(left: int) -> None:
        if left == 0:
            result.set_result(min(clocks, key=lambda clock: clock.within, default=None))
            return
        sent = time.time()

        def pong(future: Future[float]) -> None:
            if future.exception() is None:
                clocks.append(clock_between(sent, time.time(), future.result()))
            ping(left - 1 if future.exception() is None else 0)

        session.ask(node, _PING, _clock_of).add_done_callback(pong)

    ping(PINGS)
    return result


def _check(session: Session, node: str) -> Future[_Answer]:
    """Measure the clock, then check; only the check decides on success."""
    result: Future[_Answer] = Future()

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

        session.ask(node, ask, whole).add_done_callback(lambda future: _pass_on(future, result))

    measure_clock(session, node).add_done_callback(check)
    return result


def _pass_on(source: Future[T], target: Future[T]) -> None:
    error = source.exception()
    if error is not None:
        target.set_exception(error)
    else:
        target.set_result(source.result())


def _clean(session: Session, node: str) -> Future[Cleaned]:
    ask = Ask("clean", (), {}, "remove hangtop's cache", no_pieces, CHECK_S)
    return session.ask(node, ask, lambda end: decode(end, Cleaned))


def clock_between(sent: float, received: float, remote: float) -> Clock:
    """Return how far a clock is ahead that was read between two local times.

    It was read after ``sent`` and before ``received``, so the middle is wrong by half the
    difference at most, however slow the connection is.
    """
    half = max(0.0, received - sent) / 2
    return Clock(round(remote - (sent + half), 6), round(half, 6))


class _Pong(msgspec.Struct, frozen=True):
    clock: Time


def _clock_of(end: object) -> float:
    return decode(end, _Pong).clock


_PING = Ask("ping", (), {}, "ask for its clock", no_pieces, 10.0)
