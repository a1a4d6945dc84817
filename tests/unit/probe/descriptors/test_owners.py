"""Who has a pipe or socket open: one walk over all processes serves many questions."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

from hangtop_probe.descriptors import nodewide, owners
from hangtop_probe.descriptors.owners import Owner, Walks
from support.processes import PATIENCE

if TYPE_CHECKING:
    import pytest


def counted(walks: list[float], seconds: float = 0.0) -> owners.Found:
    walks.append(time.monotonic())
    time.sleep(seconds)
    return owners.walk()


def test_requests_that_come_together_share_one_walk() -> None:
    made: list[float] = []
    walks = Walks(PATIENCE, lambda: counted(made, 0.2))
    read, write = os.pipe()
    target, found = os.readlink(f"/proc/self/fd/{read}"), []

    def ask() -> None:
        found.append(nodewide.Node(walks).owners(target))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.close(read)
    os.close(write)
    assert found == [sorted([Owner(os.getpid(), read), Owner(os.getpid(), write)])] * 4
    assert len(made) == walks.count == 1
    assert nodewide.Node(walks).owners(target) == []  # closed since


def test_what_was_opened_since_is_seen_and_costs_one_walk_of_a_request() -> None:
    made: list[float] = []
    walks = Walks(PATIENCE, lambda: counted(made))
    assert walks.owners("pipe:[0]") == []
    pipes = [os.pipe() for _ in range(3)]
    node = nodewide.Node(walks)
    for read, write in pipes:
        target = os.readlink(f"/proc/self/fd/{read}")
        mine = Owner(os.getpid(), read)
        assert node.owners(target, mine) == sorted([mine, Owner(os.getpid(), write)])
        assert node.owners(target, Owner(os.getpid(), 10**6)) == node.owners(target)
    for read, write in pipes:
        os.close(read)
        os.close(write)
    assert len(made) == 2


def test_an_old_walk_is_not_shared() -> None:
    made: list[float] = []
    walks = Walks(0.0, lambda: counted(made))
    for _ in range(2):
        walks.owners("pipe:[0]")
    assert len(made) == 2


def test_of_a_process_with_very_many_descriptors_some_are_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owners, "MAX_DESCRIPTORS", 2)
    found = owners.walk()
    mine = [one for some in found.values() for one in some if one.pid == os.getpid()]
    assert len(mine) <= 2 < len(os.listdir("/proc/self/fd"))
