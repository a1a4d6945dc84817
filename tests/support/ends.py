"""A job that hangs, and how it may go on: its ranks leave, make progress, or are started again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.judging.past_hangs import PastHangs
from hangtop_core.model.updates import Update
from support.build import World
from support.situations import SLEEP, user

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hangtop_core.diagnosis import Diagnosis
    from hangtop_core.model.snapshot import Rank, Snapshot

HANG_AFTER = 30.0
CULPRIT = 3
"""The rank that holds the others up, which are 0 to 2."""


def hanging() -> Snapshot:
    """Ranks 0 to 2 wait in an all_reduce that rank 3 does not issue; for five minutes."""
    world = World()
    world.waiters(3)
    world.add(user("cool_down", 41), SLEEP)
    return world.snapshot()


def gone(rank: Rank, at: float, code: int | None = None) -> Rank:
    """A rank that has left."""
    process = replace(rank.process, gone_at=at, exit_code=code)
    return replace(rank, state="exited", process=process)


def with_gone(snapshot: Snapshot, after: float, codes: Mapping[int, int | None]) -> Snapshot:
    """A snapshot so many seconds later, in which ranks have left, with these exit statuses."""
    at, job = snapshot.at + after, snapshot.jobs[0]
    ranks = tuple(
        gone(rank, at, codes[rank.rank]) if rank.rank in codes and not rank.ended else rank
        for rank in job.ranks
    )
    return replace(snapshot, at=at, jobs=(replace(job, ranks=ranks),))


def moving(snapshot: Snapshot, after: float) -> Snapshot:
    """A snapshot so many seconds later, in which the same ranks work."""
    world = World(at=snapshot.at + after)
    for old in snapshot.jobs[0].ranks:
        facts = ("R", None, None, None, None)
        new = world.add(user("step", 10), facts, sample={"active": True})
        world.ranks[-1] = replace(new, process=old.process)
    return world.snapshot()


def started_again(snapshot: Snapshot, after: float, attempt: int, key: str = "k2") -> Snapshot:
    """A snapshot so many seconds later: the same launcher has started other ranks."""
    job = snapshot.jobs[0]
    ranks = tuple(_anew(rank, attempt, snapshot.at + after) for rank in job.ranks)
    return replace(snapshot, at=snapshot.at + after, jobs=(replace(job, key=key, ranks=ranks),))


def _anew(rank: Rank, attempt: int, at: float) -> Rank:
    process = rank.process
    env = {**process.env, "TORCHELASTIC_RESTART_COUNT": str(attempt - 1)}
    env["TORCHELASTIC_MAX_RESTARTS"] = "5"
    start, pid = process.start + attempt * 1000, process.pid + attempt * 1000
    fresh = replace(process, pid=pid, start=start, env=env, started_at=at - 1.0, gone_at=None)
    return replace(rank, process=fresh, state="sleeping", sample=None, moved_at=at)


class Watched:
    """Judges snapshots one after the other as a session does."""

    def __init__(self) -> None:
        self.past = PastHangs()
        self.updates: list[Update] = []

    def see(self, snapshot: Snapshot) -> Diagnosis:
        """What is said of the only job of the next snapshot."""
        job = snapshot.jobs[0]
        found = {job.key: diagnose(snapshot, job, HANG_AFTER)}
        told = self.past.add(snapshot, found)
        self.updates.append(Update(snapshot, told))
        return told[job.key]

    def hang(self) -> Snapshot:
        """Begin with a job that hangs."""
        snapshot = hanging()
        self.see(snapshot)
        return snapshot
