"""Since when a single rank or process is known to have got nowhere.

A main thread that sleeps in a gloo collective does not run at all, so the scheduler tells since
when it waits, also before anybody looked. That somebody holds it for a moment (strace, a signal,
a frozen cgroup) makes it run, and back into the same wait: that is no progress. A thread that
polls runs and gets nowhere: for that one only a change of its functions counts, and that can only
be watched.

Nothing is concluded from silence: stillness reaches as far as the last reading of the node, and
for a thread that runs as far as its last sample.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from hangtop_core.analysis.atwork import (
    COMPUTES_SHARE,
    all_awaited,
    asks_in_vain,
    failed,
    given,
    goes_through,
    in_native_code,
    moved_much,
    retries,
)
from hangtop_core.analysis.churn import PRODUCER_SHARE, children_moved, churned
from hangtop_core.analysis.eventloops import answered, of_gloo
from hangtop_core.analysis.gpus import Slots, doing, shared
from hangtop_core.analysis.recurrence import data_came, loaders
from hangtop_core.analysis.serving import got_on
from hangtop_core.analysis.waking import may_ask, woken_by_data
from hangtop_core.diagnosis import STALLED_AFTER_S
from hangtop_core.model.meters import latest
from hangtop_core.stacks.kinds import COMMUNICATION, POLLING, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hangtop_core.analysis.activity import Activity, Reader
    from hangtop_core.model.snapshot import Frame, Job, Process, Rank, Snapshot, StackSample

FIRST_SAMPLES_S = 10.0
"""How long the first round of samples may take, where the first sample's time is unknown."""
JITTER_S = 0.1
"""Seconds by which times of the scheduler and of samples may differ."""
TRANSFER_SHARE = 0.03
"""Cores a process uses at least while it moves data for a collective; waiting uses less."""
WORK_SHARE = 0.003
"""Cores a main thread uses that does work now and then; waking up every 5 s to poll uses less."""
THREADS_SHARE = 0.05
"""Cores a process uses while its threads are at work."""
GONE: frozenset[Kind] = frozenset({"exited", "zombie"})
HALTED: frozenset[Kind] = frozenset({"stopped", "traced", "frozen", "core-dump"})
"""What the state of a process says alone, whatever its frames are."""
_MOVES_DATA: frozenset[Kind] = frozenset(
    {"io", "remote", "child", "inline-data", "checkpoint", "busy", "importing", "compiling"}
)
_FOR_THREADS: frozenset[Kind] = frozenset({"join", "queue", "lock", "pin-memory"})
"""Waits for other threads or processes of the same rank."""
_FOR_CHILDREN: frozenset[Kind] = frozenset({"queue", "sleep", "teardown", "data"})
_FUTURES = ("/concurrent/futures/thread.py", "/asyncio/")
"""Where threads are that make futures."""
_PRINTS: frozenset[Kind] = frozenset(
    {"busy", "inline-data", "checkpoint", "importing", "compiling"}
)
"""What a main thread may do for which a log that it writes itself means that it gets on."""
PRINTS_S = 600.0
"""Seconds for which a growing log, or a child at work, in the same functions is progress."""


class Standing(Struct, frozen=True):
    """From when to when one rank is known to have got nowhere."""

    since: float
    until: float
    moved: bool  # seen to get on at `since`, while it was watched
    seen: float  # its node was last read: up to then nothing spoke against stillness

    @property
    def still_s(self) -> float:
        """Seconds of known stillness."""
        return max(self.until - self.since, 0.0)

    @property
    def stalled_s(self) -> float:
        """Seconds in which no progress was seen, known stillness or not."""
        return max(self.seen - self.since, self.still_s)

    @property
    def gets_on(self) -> bool:
        """Whether it moved a moment ago."""
        return self.moved and self.still_s < STALLED_AFTER_S


class Watcher:
    """Works out standings within one snapshot."""

    def __init__(self, snapshot: Snapshot, job: Job, reader: Reader) -> None:
        self.at = snapshot.at
        self._job, self._own = job, dict[str, frozenset[int]]()
        self.began = snapshot.observed_since
        self._reader = reader
        self._slots = Slots(snapshot.nodes)
        self._full = {node.name for node in snapshot.nodes if node.full_mounts or node.full_quotas}
        self._seen = {
            node.name: min(node.last_seen, snapshot.at)
            for node in snapshot.nodes
            if node.last_seen is not None
        }

    def rank(self, rank: Rank, activity: Activity) -> Standing:
        """How long one rank has got nowhere, by what it does."""
        kind, seen = activity.kind, self._seen.get(rank.node, self.at)
        left = left_at(rank)
        if kind in GONE or kind in HALTED:
            return _still(self.began if left is None else left, seen)
        if kind == "data" or activity.serving:
            return self._by_others(rank, activity, seen)
        if _polls(activity):
            return self._polling(rank, activity, seen)
        if activity.running and kind in COMMUNICATION and left == rank.moved_at:
            # One whose run was too short to have left its wait was caught by the reading on its
            # way back.
            return self._spinning(rank, seen)
        ran = left is not None and seen - left < STALLED_AFTER_S
        if asks_in_vain(rank, activity) or (ran and may_ask(activity, rank)):
            found = self.by_stack(rank.sample, left, seen)
        else:
            found = self._by_scheduler(rank.moved_at if woken_by_data(activity) else left, seen)
        moves_data = kind in COMMUNICATION and (rank.cpu_share or 0.0) >= TRANSFER_SHARE
        if moves_data or kind in _MOVES_DATA:
            found = self._or_moved(found, latest((rank.io_moved_at, rank.file_moved_at)))
            found = self._or_produced(rank, found) if activity.family == "pipe-read" else found
        found = self._or_moved(found, self._flowed(rank, activity))
        return self._or_threads(rank, found) if activity.by_thread else found

    def _by_others(self, rank: Rank, activity: Activity, seen: float) -> Standing:
        """Of who waits for its loading workers, or answers a call by RPC in another thread."""
        if activity.serving:
            found = self.by_stack(rank.sample, None, seen)
            lately = seen - found.since < PRINTS_S
            return self._or_moved(found, got_on(rank, activity, lately, seen))
        found = self._or_worked(rank, self._by_workers(rank, seen))
        found = self._or_moved(found, data_came(rank))
        return self._or_moved(found, self._flowed(rank, activity))

    def loads(self, rank: Rank, activity: Activity) -> bool:
        """Whether a rank waits for data that a worker of it is busy with."""
        return any(one.kind == "busy" for _, one in self._workers(rank, activity))

    def computes(self, rank: Rank, activity: Activity) -> bool:
        """Whether a worker that a rank waits for runs native code without the GIL."""
        return any(
            in_native_code(one) and rank.child_cpu_share.get(child.pid, 0.0) >= COMPUTES_SHARE
            for child, one in self._workers(rank, activity)
        )

    def _workers(self, rank: Rank, activity: Activity) -> Iterator[tuple[Process, Activity]]:
        """The workers that a rank waits for, and what each does."""
        for one in loaders(rank) if activity.kind == "data" else ():
            yield one, self._reader.process(one, rank.child_samples.get(one.pid))

    def worker(self, rank: Rank, child: Process) -> Standing | None:
        """How long a DataLoader worker has got nowhere; None when it has nothing to do."""
        sample = rank.child_samples.get(child.pid)
        activity = self._reader.process(child, sample)
        unsampled = activity.kind == "unknown" and activity.family == "poll"
        if activity.kind == "idle-worker" or unsampled:
            return None
        seen = self._seen.get(rank.node, self.at)
        moved_at = rank.child_moved_at.get(child.pid)
        left = rank.child_left_at.get(child.pid, moved_at)
        if _polls(activity) or moved_at is None:
            found = self.by_stack(sample, left, seen)
            found = self._or_moved(found, moved_at) if woken_by_data(activity) else found
        else:
            found = self._by_scheduler(left, seen)
        return self._or_moved(found, latest(rank.child_given.get(child.pid, ())))

    def by_stack(self, sample: StackSample | None, left: float | None, seen: float) -> Standing:
        """For threads that run without getting anywhere: that functions change is progress.

        Args:
            sample: the newest of the thread.
            left: when it last ran and was not only sent back into its wait.
            seen: when its node was last read.
        """
        if sample is None or not sample.threads or sample.same_functions_since is None:
            if left is not None and seen - left >= STALLED_AFTER_S:
                return _still(left, seen)
            return Standing(self.began, self.began, False, seen)
        same, first = sample.same_functions_since, sample.first_at
        # A thread that has not left its wait since it was sampled still is where it was.
        rests = left is not None and left <= sample.at + JITTER_S
        until = max(seen, sample.at) if rests else sample.at
        # On a busy node a sample may be far newer than what was read of /proc: it says nothing of
        # the time between the two.
        unread = seen < same - JITTER_S
        if same > (self.began + FIRST_SAMPLES_S if first is None else first):
            return Standing(same, until, True, seen)
        since = same if left is None or unread else min(same, left)
        return Standing(since, until, False, seen)

    def _spinning(self, rank: Rank, seen: float) -> Standing:
        """A CUDA rank spins while it waits: that it runs says nothing, its GPU and lines do."""
        slots = self._slots.of(rank)
        gpus = [slot.gpu for slot in slots]
        dark = any(gpu.state in ("silent", "error") for gpu in gpus)
        if not gpus or dark or any(doing(gpu) in ("unknown", "MIG", "busy") for gpu in gpus):
            return _still(seen, seen)
        found = self._or_moved(self.by_stack(rank.sample, None, seen), rank.printed_at)
        worked = latest(gpu.worked_at for gpu in gpus)
        if worked is not None and worked > found.since:
            own = self._processes(rank.node)
            if any(shared(slot, own) for slot in slots):
                return _still(seen, seen)  # whose work it was is not known
        return self._or_moved(found, worked)

    def _processes(self, node: str) -> frozenset[int]:
        """Process ids of the job's ranks on a node, and of their children."""
        if node not in self._own:
            ranks = [one for one in self._job.ranks if one.node == node]
            children = (child.pid for one in ranks for child in one.children)
            self._own[node] = frozenset((*(one.process.pid for one in ranks), *children))
        return self._own[node]

    def _polling(self, rank: Rank, activity: Activity, seen: float) -> Standing:
        found = self.by_stack(rank.sample, left_at(rank), seen)
        if activity.kind in _MOVES_DATA:
            found = self._or_moved(found, self._data_moved(rank, activity))
        if activity.kind in _PRINTS and seen - found.since < PRINTS_S:
            # Only its own main thread's lines: a spinner or heartbeat in a thread says nothing,
            # nor does what somebody prints who waits for others, or sleeps.
            found = self._or_moved(found, rank.printed_at)
        if woken_by_data(activity):
            found = self._or_moved(found, rank.moved_at)
        if activity.kind == "sleep" and not (
            rank.node in self._full and retries(rank, *self._stacks(rank)[:1])
        ):
            found = self._or_moved(found, moved_much(rank))
            lately = latest((rank.computed_at, rank.printed_at))
            if lately is not None and lately > found.since > seen - PRINTS_S:
                frames = next(iter(self._stacks(rank)), ())
                printed = rank.printed_at if goes_through(frames) else None
                computed = None if failed(frames) else rank.computed_at
                found = self._or_moved(found, latest((computed, printed)))
        if activity.kind in ("child", "compiling"):
            moved = children_moved(rank, activity, self.at, self._reader)
            found = self._or_moved(found, moved)
        if activity.kind in _FOR_THREADS:
            found = self._or_worked(rank, self._or_threads(rank, found))
            found = self._or_helpers(rank, activity, found)
        return self._or_moved(found, self._flowed(rank, activity))

    def _stacks(self, rank: Rank) -> list[tuple[Frame, ...]]:
        """The frames of its threads, of the main thread first."""
        threads = rank.sample.threads if rank.sample is not None else ()
        return [self._reader.frames(one.stack) for one in threads]

    def _flowed(self, rank: Rank, activity: Activity) -> float | None:
        """When a connection last got on that a rank waits for: its own, a thread's or a child's.

        Between ranks what comes to gloo: a large tensor may take minutes over a slow line.
        """
        if not rank.flowed_at:
            return None
        tids = of_gloo(rank) if activity.kind in COMMUNICATION else {rank.process.pid}
        if activity.kind in _FOR_THREADS or activity.kind in ("sleep", "teardown"):
            tids = self._awaited(rank)
        if activity.kind == "child" or activity.family == "pipe-read":
            tids |= {thread.tid for child in rank.children for thread in child.threads}
        elif activity.kind in _FOR_CHILDREN:
            # A child may be a service or a logger, whose threads talk to whoever is there.
            tids |= {child.pid for child in rank.children}
        some = answered(rank, activity, self._reader, self.began)
        return latest((some, *(at for tid, at in rank.flowed_at.items() if tid in tids)))

    def _awaited(self, rank: Rank) -> set[int]:
        """Threads that a main thread may wait for: for a future only those that make futures."""
        threads = rank.sample.threads if rank.sample is not None else ()
        uses = self._reader.uses
        if threads and uses(threads[0].stack, "/concurrent/futures/"):
            return {one.tid or 0 for one in threads if uses(one.stack, *_FUTURES)}
        return {thread.tid for thread in rank.process.threads}

    def _data_moved(self, rank: Rank, activity: Activity) -> float | None:
        """When bytes last moved; what a process reads and writes has that of its dead children."""
        if activity.kind == "child" and churned(rank, self.at, self._reader):
            return None
        return latest((rank.io_moved_at, rank.file_moved_at))

    def _by_scheduler(self, left: float | None, seen: float) -> Standing:
        """For threads that sleep until they can go on: that they left their wait is progress.

        Without the scheduler's word, a thread whose counters never moved is still since we came.
        """
        if left is None:
            return _still(self.began, seen)
        return Standing(left, seen, left > self.began, seen)

    def _by_workers(self, rank: Rank, seen: float) -> Standing:
        """A rank that waits for data gets on as far as one of its loading workers does."""
        own = self.by_stack(rank.sample, left_at(rank), seen)
        found = [one for child in loaders(rank) if (one := self.worker(rank, child)) is not None]
        if not found:
            return own
        last = max(found, key=lambda one: (one.since, one.moved))
        return own if own.moved and own.since > last.since else last

    def _or_moved(self, found: Standing, moved_at: float | None) -> Standing:
        """The later of two signs of progress."""
        if moved_at is None or found.since >= moved_at:
            return found
        return Standing(moved_at, max(found.until, moved_at), moved_at > self.began, found.seen)

    def _or_threads(self, rank: Rank, found: Standing) -> Standing:
        """A main thread that waits for its own threads gets on while they are at work."""
        if (rank.cpu_share or 0.0) >= THREADS_SHARE:
            return _moves(found.seen)
        return found

    def _or_helpers(self, rank: Rank, activity: Activity, found: Standing) -> Standing:
        """It gets on, too, while a thread writes much, or is done, or a child works on its queue.

        Where a disk is full, what is written may be the same again and again.
        """
        if activity.kind == "queue":
            found = self._or_produced(rank, found)
        stacks = self._stacks(rank)
        found = self._or_moved(found, given(rank, stacks))
        if rank.node in self._full and any(retries(rank, one) for one in stacks):
            return found
        if activity.kind in ("join", "queue") and found.seen - found.since < PRINTS_S:
            moved = rank.io_moved_at
            if moved is not None and moved > found.since and all_awaited(stacks):
                found = self._or_moved(found, moved)
        return self._or_moved(found, moved_much(rank))

    def _or_produced(self, rank: Rank, found: Standing) -> Standing:
        """It gets on while a child of it works, by its queue or pipe, on what it waits for.

        A child may work on something else: for how long that passes is limited.
        """
        works = any(
            rank.child_cpu_share.get(child.pid, 0.0) >= PRODUCER_SHARE
            for child in rank.children
            if child.role == "subprocess"
        )
        works = works and not churned(rank, self.at, self._reader)
        return _moves(found.seen) if works and found.seen - found.since < PRINTS_S else found

    def _or_worked(self, rank: Rank, found: Standing) -> Standing:
        """A main thread that did work, and not only woke up, has got what it waited for."""
        if rank.worked_at is not None:
            return self._or_moved(found, rank.worked_at)
        if (rank.main_cpu_share or 0.0) >= WORK_SHARE:
            return _moves(found.seen)
        return found


def _still(since: float, seen: float) -> Standing:
    return Standing(since, seen, False, seen)


def _moves(seen: float) -> Standing:
    return Standing(seen, seen, True, seen)


def _polls(activity: Activity) -> bool:
    if activity.kind == "file-lock":
        # flock sleeps until it has the lock; lock-file libraries look again and again.
        return activity.family != "file-lock"
    if activity.kind == "io":
        return False
    return activity.kind in POLLING or activity.kind in _MOVES_DATA


def wakes_up(rank: Rank, standing: Standing) -> bool:
    """Whether it has run since it is where it is, as far as is known: it looks again and again."""
    return rank.moved_at is None or rank.moved_at > standing.since + JITTER_S


def left_at(rank: Rank) -> float | None:
    """When a rank's main thread was last known to leave its wait; None if it cannot be told."""
    return rank.moved_at if rank.left_at is None else rank.left_at
