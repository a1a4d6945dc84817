"""Ranks that are in the same trouble at the same line are one verdict; others are told apart."""

from __future__ import annotations

from support.build import World, judged
from support.situations import FUTEX, QUEUE, RUN, c10d, user

MATCH = user("clean", 31, "re.match(pattern, text)")


def test_busy_ranks_at_one_line_are_one_verdict() -> None:
    world = World()
    world.waiters(2)
    for share in (0.9, 1.0, 0.95):
        world.add(MATCH, RUN, cpu_share=share)
    world.add(user("sort_all", 50, "rows.sort()"), RUN)
    found = [v for v in judged(world).verdicts if v.cause == "busy-in-python"]
    assert [[c.rank for c in v.culprits] for v in found] == [[2, 3, 4], [5]]
    assert "ranks 2-4 are busy" in found[0].summary
    assert ", 90-100% of a core each" in found[0].summary
    assert "and stay there for" in found[0].summary
    assert "and stays there for" in found[1].summary


def test_ranks_that_wait_for_a_lock_at_one_line_are_one_verdict() -> None:
    world = World()
    world.waiters(3)
    for _ in range(2):
        world.add(user("update", 12, "with self.stats_lock:"), FUTEX)
    world.add(user("push", 9, "with self.push_lock:"), FUTEX)
    found = [v for v in judged(world).verdicts if v.cause == "lock-wait"]
    assert [[c.rank for c in v.culprits] for v in found] == [[3, 4], [5]]
    assert found[0].summary.startswith("ranks 3-4 wait for a lock at train.py:12 (update) for ")
    assert found[1].summary.startswith("rank 5 (n1, pid 4050) waits for a lock at train.py:9")


def test_ranks_that_wait_for_queues_that_nobody_fills_are_one_verdict() -> None:
    world = World()
    for _ in range(2):
        world.add(QUEUE, FUTEX)
    for _ in range(3):
        world.add(c10d("all_reduce"), FUTEX)
    (found,) = judged(world).verdicts
    assert (found.cause, [c.rank for c in found.culprits]) == ("queue-wait", [0, 1])
    assert found.summary.startswith("ranks 0-1 wait in ")
