"""`hangtop flight` on running ranks: how long it waits, and what it takes for getting on."""

from __future__ import annotations

from argparse import Namespace
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from hangtop.cli.jobs import flightlive
from hangtop_core.model.updates import Update
from support.build import World, recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hangtop_core.model.snapshot import Recorder, Snapshot

TRIGGER = Namespace(trigger=True, allow_inject=False)


class Clock:
    """Time that goes by where it is waited."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    time = monotonic

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def wait(self, futures: Iterable[Future[None]], timeout: float) -> tuple[Any, Any]:
        self.now += timeout
        waiting = {future for future in futures if not future.done()}
        return set(futures) - waiting, waiting


class Session:
    """Shows one picture after another, each once recorders were asked for."""

    def __init__(self, *pictures: Snapshot) -> None:
        self.pictures = list(pictures)
        self.latest: Update | None = None

    def recorder(self, node: str, pids: list[int], **options: bool) -> Future[None]:
        self.latest = Update(self.pictures.pop(0), {})
        answer: Future[None] = Future()
        answer.set_result(None)
        return answer

    def wait(self, test: Callable[[Update], bool], timeout: float) -> None:
        pass


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(flightlive, "time", clock)
    monkeypatch.setattr(flightlive, "wait", clock.wait)
    return clock


def picture(*recorders: Recorder | None) -> Snapshot:
    world = World()
    world.waiters(len(recorders))
    for number, (rank, one) in enumerate(zip(world.ranks, recorders, strict=True)):
        world.ranks[number] = msgspec.structs.replace(rank, recorder=one)
    return world.snapshot()


ONE = recorder(["all_reduce"], 0)
TWO = recorder(["all_reduce"] * 2, 1)
EMPTY = recorder([], 0)


@pytest.mark.parametrize(
    ("first", "second", "moved"),
    [
        ((ONE, ONE), (ONE, ONE), False),
        ((ONE, ONE), (TWO, ONE), True),
        ((ONE, None), (ONE, ONE), False),
        ((ONE, EMPTY), (ONE, ONE), True),
        ((ONE, EMPTY), (ONE, EMPTY), False),
        ((ONE, ONE), (ONE, None), False),
        ((EMPTY, None), (EMPTY, None), False),
    ],
    ids=["same", "more", "late", "first entry", "empty", "lost", "nothing"],
)
def test_what_was_read_twice_tells_whether_ranks_get_on(
    clock: Clock, first: tuple[Any, ...], second: tuple[Any, ...], moved: bool
) -> None:
    before = picture(*first)
    session: Any = Session(before, picture(*second))
    assert flightlive.ask(session, before.jobs[0], TRIGGER) is moved


def test_ranks_that_are_to_write_a_dump_are_waited_for_as_long_as_they_may_take(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    class Slow(Session):
        def recorder(self, node: str, pids: list[int], **options: bool) -> Future[None]:
            answer: Future[None] = Future()
            until = clock.now + 70.0
            answer.done = lambda: clock.now >= until  # type: ignore[method-assign]
            answer.result = lambda timeout=None: self.answer(answer.done())  # type: ignore[method-assign]
            return answer

        def answer(self, done: bool) -> None:
            if not done:
                raise TimeoutError

    before = picture(None)
    session: Any = Slow()
    flightlive.ask(session, before.jobs[0], TRIGGER)
    assert capsys.readouterr().err == ""
