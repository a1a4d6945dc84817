"""Connections that were given up, and when a link connects again."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from hangtop_core.attach.connect.leaving import AGAIN_S, Leaving
from hangtop_core.attach.connect.timing import Retry, Timing

if TYPE_CHECKING:
    from hangtop_core.attach.wire.router import Connections


class Engine:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []

    def close_input(self, conn: int) -> None:
        self.told.append(("close", conn))

    def kill(self, conn: int) -> None:
        self.told.append(("kill", conn))

    def take(self) -> list[tuple[str, int]]:
        """What it was told since the last time."""
        told, self.told = self.told, []
        return told


def test_who_does_not_end_by_itself_is_killed_and_now_and_then_once_more() -> None:
    engine = Engine()
    leaving = Leaving(cast("Connections", engine), kill_s=2.0)
    assert not leaving
    leaving.add(1, now=100.0)
    leaving.add(2, now=101.0)
    assert engine.take() == [("close", 1), ("close", 2)]
    leaving.kill_late(now=101.9)
    assert engine.take() == []
    leaving.kill_late(now=102.0)
    assert engine.take() == [("kill", 1)]
    leaving.closed(2)
    leaving.kill_late(now=102.0 + AGAIN_S - 1)
    assert engine.take() == []
    leaving.kill_late(now=102.0 + AGAIN_S)
    assert engine.take() == [("kill", 1)]
    leaving.kill()
    assert engine.take() == [("kill", 1)]
    assert leaving
    leaving.closed(1)
    assert not leaving


def test_waits_grow_with_failures_in_a_row() -> None:
    retry = Retry(Timing(retry_first=1.0, retry_last=60.0))
    assert retry.at is None
    for low, high in ((0.5, 1.0), (1.0, 2.0), (2.0, 4.0)):
        wait = retry.plan(now=100.0)
        assert low <= wait <= high
        assert retry.at == 100.0 + wait
    retry.failures = 0
    assert retry.plan(now=100.0) <= 1.0
    for _ in range(40):
        assert retry.plan(now=100.0) <= 60.0
