"""Two stacks side by side."""

from __future__ import annotations

import pytest

from hangtop.views.ranks.diff import difference
from support.build import NOW, World
from support.situations import FUTEX, SLEEP, frame


@pytest.mark.parametrize(
    ("shared", "told"),
    [
        (("main",), "─ the 1 frame below is the same ─"),
        (("run", "main"), "─ the 2 frames below are the same ─"),
    ],
)
def test_how_many_frames_are_the_same_is_told_as_one_says_it(
    shared: tuple[str, ...], told: str
) -> None:
    outer = tuple(frame(name, "train.py", 1) for name in shared)
    world = World()
    world.waiters(2, (frame("sync", "train.py", 9), *outer), FUTEX)
    rank = world.add((frame("cool_down", "train.py", 35), *outer), SLEEP)
    snapshot = world.snapshot()
    _, lines = difference(snapshot, snapshot.jobs[0], rank, (), cut=True, width=80, now=NOW)
    assert any(told in "".join(text for text, *_ in one) for one in lines)
