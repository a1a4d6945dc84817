"""A picture is filled in turns, between which keys are answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hangtop.screens import turns
from hangtop.screens.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Filled:
    """A page of three panes, each of which takes a second; and its app, which handles keys."""

    is_shown = True

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self.done: list[str] = []
        self.later: list[Callable[[], object]] = []
        self.now, self._seconds, self._pictures = 0.0, seconds, 0
        monkeypatch.setattr(turns, "perf_counter", lambda: self.now)
        self.turns = Turns(self, self.later.append)

    def steps(self) -> Iterator[None]:
        self._pictures += 1
        picture = self._pictures
        for pane in "abc":
            self.now += self._seconds
            self.done.append(f"{pane}{picture}")
            yield

    def show_bars(self) -> None:
        self.done.append("bars")

    def handle_keys(self, *keys: str) -> None:
        self.done += keys
        waiting, self.later[:] = list(self.later), []
        for one in waiting:
            one()


def test_a_small_job_is_shown_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    page = Filled(monkeypatch, 0.001)
    page.turns.begin()
    assert page.done == ["a1", "b1", "c1", "bars"]
    assert not page.later


def test_between_panes_of_a_large_one_keys_are_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    page = Filled(monkeypatch, 1.0)
    page.turns.begin()
    for key in ("j", "k", "l"):
        page.handle_keys(key)
    assert page.done == ["a1", "j", "b1", "k", "c1", "l", "bars"]


def test_a_picture_that_comes_meanwhile_is_shown_next(monkeypatch: pytest.MonkeyPatch) -> None:
    page = Filled(monkeypatch, 1.0)
    page.turns.begin()
    page.turns.begin()
    for _ in range(6):
        page.handle_keys()
    assert page.done == ["a1", "b1", "c1", "bars", "a2", "b2", "c2", "bars"]
    assert not page.later


@pytest.mark.parametrize("how", ["shown as a whole", "left"])
def test_nothing_more_is_filled_then(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    page = Filled(monkeypatch, 1.0)
    page.turns.begin()
    if how == "left":
        page.is_shown = False
    else:
        page.turns.stop()
    page.handle_keys()
    assert page.done == ["a1"]
    assert not page.later
