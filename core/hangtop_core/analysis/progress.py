"""Hung or slow: since when each rank, and so the job, is known not to have got anywhere.

A main thread that sleeps in a gloo collective does not run at all, so the scheduler tells since
when it waits, also before anybody looked. A thread that polls runs and gets nowhere: for that
one only a change of its functions counts, and that can only be watched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from hangtop_core.analysis.dictionary import COMMUNICATION, POLLING, START_UP, Kind
from hangtop_core.model import JobState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hangtop_core.analysis.activity import Activity, Reader
    from hangtop_core.model import Job, Process, Rank, Snapshot, StackSample

HANG_AFTER_S = 30.0
"""Seconds without any progress after which a job that waits is called hung."""
FLOOR_S = 5.0
"""Seconds below which nothing is called stalled, however plain the cause looks."""
FIRST_SAMPLES_S = 10.0
"""How long the first round of samples may take, where the first sample's time is unknown."""
TRANSFER_SHARE = 0.03
"""Cores a process uses at least while it moves data for a collective; waiting uses less."""
WORK_SHARE = 0.003
"""Cores a main thread uses that does work now and then; waking up every 5 s to poll uses less."""
THREADS_SHARE = 0.05
"""Cores a process uses while its threads are at work."""

_GONE: frozenset[Kind] = frozenset({"exited", "zombie"})
_HALTED: frozenset[Kind] = frozenset({"stopped", "traced", "frozen"})
_MOVES_DATA: frozenset[Kind] = frozenset(
    {"io", "remote", "child", "inline-data", "checkpoint", "busy", "importing", "compiling"}
)
_FOR_THREADS: frozenset[Kind] = frozenset({"join", "queue", "lock", "pin-memory"})
"""Waits for other threads or processes of the same rank."""
_AT_WORK: frozenset[Kind] = frozenset(
    {"busy", "sleep", "compiling", "checkpoint", "importing", "inline-data", "unknown", "waiting"}
)
"""What a rank may do for long without anybody being stuck, as long as nobody waits for it."""


class Standing(Struct, frozen=True):
    """How long one rank has got nowhere."""

    since: float | None
    """Since when it is known to have made no progress; None when that cannot be told."""
    moved: bool
    """Whether it was seen to make progress at `since`, while it was watched."""


class Progress(Struct, frozen=True):
    """Whether a job gets on."""

    state: JobState
    since: float | None
    """When the last of its ranks last got anywhere."""
    stalled_for_s: float | None
    ranks: tuple[Standing, ...]
    """In the order of `Job.ranks`."""


def judge(
    snapshot: Snapshot,
    job: Job,
    activities: Sequence[Activity],
    reader: Reader,
    hang_after: float = HANG_AFTER_S,
) -> Progress:
    """Say how a job gets on, without regard to causes.

    Args:
        snapshot: gives the time, and since when the job has been watched.
        job: whose ranks.
        activities: one for each rank of the job.
        reader: reads the activities of children.
        hang_after: seconds without progress after which waiting is called a hang.
    """
    if not job.ranks:
        return _without_ranks(snapshot, job, reader, hang_after)
    lost = {node.name for node in snapshot.nodes if node.state in ("lost", "unreachable")}
    standings = tuple(
        # What was last seen of a lost node is no sign that anything goes on there.
        Standing(rank.moved_at or snapshot.observed_since, False)
        if rank.node in lost
        else standing(snapshot, rank, activity, reader)
        for rank, activity in zip(job.ranks, activities, strict=True)
    )
    alive = [i for i, activity in enumerate(activities) if activity.kind not in _GONE]
    if not alive:
        return Progress("exited", None, None, standings)
    since = _latest(standings[i].since for i in alive)
    stalled = None if since is None else max(snapshot.at - since, 0.0)
    kinds = {activities[i].kind for i in alive}
    waits = bool(kinds & COMMUNICATION) or not kinds & _AT_WORK
    if waits and stalled is not None and stalled >= hang_after:
        return Progress("hung", since, stalled, standings)
    lately = snapshot.at - FLOOR_S
    moves = any(s.moved and s.since is not None and s.since > lately for s in standings)
    # Where nobody waits for anybody, running is all there is to see.
    runs = not waits and any((job.ranks[i].moved_at or 0.0) > lately for i in alive)
    state: JobState = "progressing" if moves or runs else "unknown"
    if kinds <= START_UP:
        state = "starting"
    return Progress(state, since, stalled, standings)


def standing(snapshot: Snapshot, rank: Rank, activity: Activity, reader: Reader) -> Standing:
    """How long one rank has got nowhere, by what it does."""
    began = snapshot.observed_since
    kind = activity.kind
    if kind in _GONE or kind in _HALTED:
        return Standing(rank.moved_at if rank.moved_at is not None else began, False)
    if kind == "data":
        return _or_worked(snapshot, rank, _by_workers(snapshot, rank, reader))
    if _polls(activity):
        return _of_polling(snapshot, rank, activity)
    if activity.running and kind in COMMUNICATION:
        # A CUDA rank spins while it waits: that it runs says nothing either way.
        return Standing(snapshot.at, False)
    found = _by_scheduler(rank.moved_at, began)
    if (kind in COMMUNICATION and (rank.cpu_share or 0.0) >= TRANSFER_SHARE) or kind in _MOVES_DATA:
        found = _or_moved(found, rank.io_moved_at, began)
    return _or_threads(snapshot, rank, found) if activity.by_thread else found


def _polls(activity: Activity) -> bool:
    if activity.kind == "file-lock":
        # flock sleeps until it has the lock; lock-file libraries look again and again.
        return activity.family != "file-lock"
    if activity.kind == "io":
        return False
    return activity.kind in POLLING or activity.kind in _MOVES_DATA


def _of_polling(snapshot: Snapshot, rank: Rank, activity: Activity) -> Standing:
    began = snapshot.observed_since
    found = _by_stack(snapshot, rank.sample, rank.moved_at)
    if activity.kind in _MOVES_DATA:
        found = _or_moved(found, rank.io_moved_at, began)
    if activity.kind in ("child", "compiling"):
        found = _or_moved(found, _latest(rank.child_moved_at.values()), began)
    if activity.kind in _FOR_THREADS:
        found = _or_worked(snapshot, rank, _or_threads(snapshot, rank, found))
    return found


def _or_threads(snapshot: Snapshot, rank: Rank, found: Standing) -> Standing:
    """A main thread that waits for its own threads gets on while they are at work."""
    if (rank.cpu_share or 0.0) >= THREADS_SHARE:
        return Standing(snapshot.at, True)
    return found


def _or_worked(snapshot: Snapshot, rank: Rank, found: Standing) -> Standing:
    """A main thread that did work, and not only woke up, has got what it waited for."""
    if rank.worked_at is not None:
        return _or_moved(found, rank.worked_at, snapshot.observed_since)
    if (rank.main_cpu_share or 0.0) >= WORK_SHARE:
        return Standing(snapshot.at, True)
    return found


def _by_scheduler(moved_at: float | None, began: float) -> Standing:
    """For threads that sleep until they can go on: that they ran is progress.

    Without the scheduler's word, a thread whose counters never moved is still since we came.
    """
    if moved_at is None:
        return Standing(began, False)
    return Standing(moved_at, moved_at > began)


def _by_stack(snapshot: Snapshot, sample: StackSample | None, moved_at: float | None) -> Standing:
    """For threads that run without getting anywhere: that their functions change is progress."""
    if sample is None or not sample.threads or sample.same_functions_since is None:
        if moved_at is not None and snapshot.at - moved_at >= FLOOR_S:
            return Standing(moved_at, False)
        return Standing(snapshot.observed_since, False)
    same = sample.same_functions_since
    first = sample.first_at
    if first is None:
        first = snapshot.observed_since + FIRST_SAMPLES_S
    if same > first:
        return Standing(same, True)
    return Standing(same if moved_at is None else min(same, moved_at), False)


def _or_moved(found: Standing, moved_at: float | None, began: float) -> Standing:
    """The later of two signs of progress."""
    if moved_at is None or (found.since is not None and found.since >= moved_at):
        return found
    return Standing(moved_at, moved_at > began)


def _by_workers(snapshot: Snapshot, rank: Rank, reader: Reader) -> Standing:
    """A rank that waits for data gets on as far as one of its loading workers does."""
    own = _by_stack(snapshot, rank.sample, rank.moved_at)
    found: list[Standing] = []
    for child in rank.children:
        if child.role != "dataloader-worker" or child.gone_at is not None or child.state == "Z":
            continue
        one = worker_standing(snapshot, rank, child, reader)
        if one is not None:
            found.append(one)
    since = _latest(one.since for one in found)
    if since is None:
        return own
    if own.moved and own.since is not None and own.since > since:
        return own
    return Standing(since, any(one.moved and one.since == since for one in found))


def worker_standing(
    snapshot: Snapshot, rank: Rank, child: Process, reader: Reader
) -> Standing | None:
    """How long a DataLoader worker has got nowhere; None when it has nothing to do."""
    sample = rank.child_samples.get(child.pid)
    activity = reader.process(child, sample)
    if activity.kind == "idle-worker" or (activity.kind == "unknown" and activity.family == "poll"):
        return None
    moved_at = rank.child_moved_at.get(child.pid)
    if _polls(activity):
        return _by_stack(snapshot, sample, moved_at)
    if moved_at is None:
        return _by_stack(snapshot, sample, None)
    return _by_scheduler(moved_at, snapshot.observed_since)


def _without_ranks(snapshot: Snapshot, job: Job, reader: Reader, hang_after: float) -> Progress:
    """A job of launchers only: it starts, until its rendezvous has lasted too long."""
    since: list[float] = []
    for launcher in job.launchers:
        sample = job.launcher_samples.get(launcher.pid)
        if reader.process(launcher, sample).kind != "rendezvous":
            continue
        found = _by_stack(snapshot, sample, None)
        if found.since is not None and not found.moved and snapshot.at - found.since >= FLOOR_S:
            # Launchers without ranks have done nothing but wait since shortly after their start.
            since.append(min(found.since, launcher.started_at + FLOOR_S))
        elif found.since is not None:
            since.append(found.since)
    last = max(since, default=None)
    stalled = None if last is None else max(snapshot.at - last, 0.0)
    hung = stalled is not None and stalled >= hang_after
    return Progress("hung" if hung else "starting", last, stalled, ())


def _latest(times: Iterable[float | None]) -> float | None:
    return max((time for time in times if time is not None), default=None)


def ages(snapshot: Snapshot, job: Job, progress: Progress) -> Mapping[int, float]:
    """Seconds each rank has got nowhere, for screens; without those that cannot be told."""
    return {
        rank.rank: max(snapshot.at - one.since, 0.0)
        for rank, one in zip(job.ranks, progress.ranks, strict=False)
        if one.since is not None
    }
