"""Whose stacks `hangtop dump` takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop.cli.dump import named, pids_by_node
from support.build import LOADER, POLL, World, worker_in

if TYPE_CHECKING:
    from hangtop_core.model import Job


def job() -> Job:
    """Ranks 0 and 1 wait for rank 2, which waits for its workers 5020 and 5021."""
    world = World()
    world.waiters(2)
    rank = world.add(LOADER, POLL)
    world.give_children(
        rank, [world.worker(rank, worker_in("read", 36), POLL, number) for number in range(2)]
    )
    launcher = world.process(300, None, role="launcher")
    return world.snapshot(launchers=(launcher,)).jobs[0]


def test_without_names_all_processes_are_taken() -> None:
    assert pids_by_node(named(job(), [])) == {"n1": [4000, 4010, 4020, 5020, 5021]}


def test_a_launcher_stands_for_all_its_ranks() -> None:
    assert named(job(), [300, 4000]) == job()


def test_a_rank_is_taken_alone_with_its_workers() -> None:
    assert pids_by_node(named(job(), [4020])) == {"n1": [4020, 5020, 5021]}
    assert pids_by_node(named(job(), [4010])) == {"n1": [4010]}


def test_a_worker_is_taken_with_its_rank() -> None:
    assert pids_by_node(named(job(), [5021])) == {"n1": [4020, 5021]}
