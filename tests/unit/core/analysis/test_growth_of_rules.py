"""Rules cost as much more as there are more ranks: none compares all of them with all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.model.descriptors import Descriptor, DescriptorTable, Holder, Socket
from support import situations
from support.build import NOW, World
from support.large import operations
from support.situations import user, worker_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangtop_core.model.snapshot import Snapshot

FEW, MANY = 100, 400


def half(add: Callable[[World, str], object], wait: situations.Stack) -> Callable[[int], Snapshot]:
    """Jobs of which half of the ranks are made by a function, and half wait for them."""

    def made(ranks: int) -> Snapshot:
        world = World()
        for number in range(ranks):
            if number % 2:
                add(world, f"n{number // 8}")
            else:
                world.waiters(1, wait, node=f"n{number // 8}")
        return world.snapshot()

    return made


def sleeps(world: World, node: str) -> None:
    world.add(user("look", 7), situations.SLEEP, node=node)


def polls(world: World, node: str) -> None:
    some = [
        Descriptor(
            fd,
            "socket",
            f"socket:[{fd}]",
            socket=Socket("tcp", "ESTABLISHED", f"127.0.0.1:5000{fd}", f"10.0.0.{fd}:443"),
        )
        for fd in (11, 12)
    ]
    world.add(
        user("fetch", 7), situations.POLL, node=node, descriptors=DescriptorTable(NOW, tuple(some))
    )


def loads(world: World, node: str) -> None:
    """Its worker waits for a lock."""
    one = world.add(situations.LOADER, situations.POLL, node=node)
    worker = world.worker(one, worker_in("lock", 7), situations.FLOCK)
    holder = Holder(7, "x", "S", "holds the lock")
    lock = Descriptor(9, "file", "/d/lock", locked="waiting", holders=(holder,))
    world.give_children(one, [worker], tables={worker[0].pid: DescriptorTable(NOW, (lock,))})


def is_busy(world: World, node: str) -> None:
    sample = {"active": True, "gil": True}
    world.add(user("spin", 7), situations.RUN, node=node, sample=sample)


@pytest.mark.parametrize(
    ("add", "wait", "verdicts"),
    [
        (sleeps, situations.c10d("all_reduce"), 1),
        (sleeps, situations.INIT, 1),
        (polls, situations.c10d("all_reduce"), 1),
        (loads, situations.c10d("all_reduce"), MANY // 2),
        (is_busy, situations.c10d("all_reduce"), 1),
    ],
)
def test_ranks_that_are_elsewhere(
    add: Callable[[World, str], object], wait: situations.Stack, verdicts: int
) -> None:
    cost, found = {}, []
    for ranks in (FEW, MANY):
        snapshot = half(add, wait)(ranks)
        job = snapshot.jobs[0]
        cost[ranks] = operations(lambda of=(snapshot, job): found.append(diagnose(*of)))
    assert len(found[-1].verdicts) == verdicts
    assert cost[MANY] < 1.5 * MANY / FEW * cost[FEW]
