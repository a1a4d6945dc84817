"""A recorded job as if nothing told the numbers of its ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.model.updates import Update

if TYPE_CHECKING:
    from hangtop_core.model.snapshot import Rank, Snapshot

NUMBERED = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK")


def nameless(rank: Rank) -> Rank:
    """The same rank, without what tells its number."""
    env = {name: value for name, value in rank.process.env.items() if name not in NUMBERED}
    process = replace(rank.process, rank=None, rank_source=None, env=env, label="rank ?")
    return replace(rank, rank=process.number, process=process)


def without_numbers(snapshot: Snapshot) -> Snapshot:
    """The same of all ranks of the first job."""
    job = snapshot.jobs[0]
    job = replace(job, ranks=tuple(map(nameless, job.ranks)))
    return replace(snapshot, jobs=(job,), outputs=())


def judged(update: Update) -> Update:
    """The same of an update, judged anew."""
    snapshot = without_numbers(update.snapshot)
    job = snapshot.jobs[0]
    return Update(snapshot, {job.key: diagnose(snapshot, job)})
