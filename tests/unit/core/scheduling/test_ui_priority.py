"""Threads that wait for the one that draws."""

from __future__ import annotations

import threading

import pytest

from hangtop_core.analysis.verdict.engine import TOGETHER
from hangtop_core.analysis.verdict.rules import RULES
from hangtop_core.scheduling import ui_priority
from hangtop_core.scheduling.interruptible import PART
from hangtop_core.scheduling.ui_priority import MOST_S, SCREENS, UiPriority
from support.large import Large


@pytest.fixture
def forever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits does so until it is told, or the test fails."""
    monkeypatch.setattr(ui_priority, "MOST_S", 60.0)


def waiting(first: UiPriority) -> tuple[threading.Thread, threading.Event]:
    """A thread that gives way, and what it sets then."""
    passed = threading.Event()

    def work() -> None:
        first.give_way()
        passed.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread, passed


@pytest.mark.usefixtures("forever")
def test_others_wait_until_the_first_one_has_nothing_to_do() -> None:
    first = UiPriority()
    assert waiting(first)[1].wait(30), "nothing is drawn"
    first.begin()
    first.give_way()  # the first one does not wait for itself
    thread, passed = waiting(first)
    assert not passed.wait(0.2)
    first.end()
    assert passed.wait(30)
    thread.join()


def test_what_is_handed_to_the_first_one_counts_before_it_begins() -> None:
    first = UiPriority()
    first.handed()
    first.rest(30.0)  # nobody goes first
    first.begin()
    first.end()
    first.handed()
    passed = threading.Event()

    def work() -> None:
        first.rest(60.0)
        passed.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert not passed.wait(0.2)
    first.begin()
    assert not passed.wait(0.2)
    first.end()
    assert passed.wait(30)
    thread.join()


def test_who_gives_way_has_half_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    first, now = UiPriority(), [100.0]

    class Clock:
        """Stands still but where somebody waits."""

        @staticmethod
        def monotonic() -> float:
            return now[0]

    def wait(seconds: float) -> bool:
        now[0] += seconds
        return False

    first.begin()
    first._first = None  # another thread
    monkeypatch.setattr(ui_priority, "time", Clock)
    monkeypatch.setattr(first._rests, "wait", wait)
    for _ in range(1000):
        first.give_way()
        now[0] += 0.001
    assert now[0] - 100.0 == pytest.approx(2.0, abs=2 * MOST_S), "it has worked for a second"


def test_work_on_many_gives_way_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    gaps: list[str] = []
    monkeypatch.setattr(UiPriority, "give_way", lambda _: gaps.append("way"))
    things = range(2 * PART + 1)
    assert list(SCREENS.between(things)) == list(things)
    assert len(gaps) == 3

    large = Large(2 * PART // 8, hang_at=-1.0)
    large.hear(0.0)
    gaps.clear()
    large.store.publish(1.0)
    assert gaps, "a picture"
    gaps.clear()
    large.picture(2.0)
    assert len(gaps) >= len(RULES) // TOGETHER + 4, "and a verdict: what ranks do, and rules"
