"""What `hangtop strace` asks before it traces."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, cast

from hangtop.cli.commands.strace import socket_ends
from hangtop_core.model.updates import Update
from support.build import NOW, World

if TYPE_CHECKING:
    from hangtop_core.session.session import Session


class Asked:
    """Answers at once, and remembers whom it asked and how often it waited for a picture."""

    def __init__(self, latest: Update) -> None:
        self.latest = latest
        self.asked: list[tuple[str, list[int]]] = []
        self.waited = 0

    def descriptors(self, node: str, pids: list[int]) -> Future[Any]:
        self.asked.append((node, pids))
        future: Future[Any] = Future()
        future.set_result({})
        return future

    def wait(self, predicate: Any, timeout: float) -> Update:
        self.waited += 1
        return self.latest


def test_every_node_is_asked_once_and_all_are_waited_for_together() -> None:
    world = World()
    for node in ("n0", "n1"):
        world.waiters(8, node=node)
    snapshot = world.snapshot()
    ranks = [rank for job in snapshot.jobs for rank in job.ranks]
    session = Asked(Update(snapshot, {}, NOW))
    found = socket_ends(cast("Session", session), ranks)
    assert sorted(found) == sorted((rank.node, rank.process.pid) for rank in ranks)
    assert [(node, len(pids)) for node, pids in session.asked] == [("n0", 8), ("n1", 8)]
    assert session.waited == 1
