"""The requests that are due on a node: cheap enough to run unattended, early enough for a verdict.

A thread that has not run cannot have changed its stack. So every process is sampled once, and again
only after its main thread ran; otherwise its sample is renewed without running py-spy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.attach.connect.timing import doubled
from hangtop_core.collect.sample_rate import ASK_AGAIN, ASK_LAST, EARLY, REAL_AGAIN, Rate
from hangtop_core.model.process import STORE_THREAD
from hangtop_core.model.updates import QUIET
from hangtop_hook.numericsfile import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from hangtop_core.model.process import Process
    from hangtop_core.state.node_view import NodeView
    from hangtop_core.state.tracked import Tracked

MAX_SAMPLES = 16
"""Maximum processes of one node in one round of samples."""
MAX_TABLES = 4
"""Maximum descriptor tables of one node in one round."""
LONG_REST = 7.0
"""Seconds after which even a process that wakes up now and then rests: torch's DataLoader polls
every 5 s (torch 2.13 torch/utils/data/_utils/__init__.py, MP_STATUS_CHECK_INTERVAL)."""
RESTED = 4.0
"""Repeated requests for a resting process are made at intervals of its rest divided by this."""
REAL_MOST = 5.0
"""Maximum factor by which the interval between real samples grows."""
ROUND_S = 4.0
"""Seconds in the same functions after which the open files of a process are relevant."""
STEADY_MOVES = 6
"""Samples of a moving process at the full rate; then the rate halves, down to a sixth."""
WORKER_SERVER = "pt_workerserver"
"""Name of a rank's debug-server thread: torch 2.13 torch/csrc/distributed/c10d/control_plane."""

_POLLS = ("poll", "ppoll", "select", "pselect", "epoll_")
_OF_CONTROLLERS = "multiprocessing"
"""The launcher of ranks that a program of its own has started, which may send them work."""
_SAMPLED_ROLES = frozenset({"rank", "launcher", "dataloader-worker", "subprocess"})

_TABLE_ROLES = frozenset({"rank", "launcher", "dataloader-worker", "subprocess"})


class Plan(NamedTuple):
    """Pids of one node, by what is due."""

    sample: list[int]
    renew: list[int]
    descriptors: list[int]
    recorder: list[int]
    numerics: list[int]


def plan(
    processes: Collection[Tracked],
    now: float,
    rate: Rate,
    outliers: frozenset[int],
    read_at: float | None = None,
) -> Plan:
    """Return what is due on one node.

    Args:
        processes: its live processes.
        now: time on the head's clock, as in samples.
        rate: the sampling rate of moving processes.
        outliers: pids of ranks whose stack few others share.
        read_at: when its process table was last read; None for now.
    """
    exes = frozenset(tracked.process.exe for tracked in processes if tracked.process.role == "rank")
    look = _Look(now, now if read_at is None else read_at, rate, exes)
    stacks = _DueStacks(look)
    tables: list[int] = []
    recorders: list[int] = []
    numerics: list[int] = []
    for tracked in processes:
        process = tracked.process
        if process.ended:
            continue
        pid = process.pid
        if can_sample(tracked, exes):
            stacks.add(tracked)
        if len(tables) < MAX_TABLES and (
            look.table_due(tracked, pid in outliers) or look.talks(tracked, processes)
        ):
            tables.append(pid)
        if process.role == "rank":
            if look.recorder_due(tracked):
                recorders.append(pid)
            if _numerics_due(tracked, now):
                numerics.append(pid)
    return Plan(stacks.chosen(), stacks.renew, tables, recorders, numerics)


class _DueStacks:
    """The processes of a node whose samples are renewed, due, or due in turn."""

    __slots__ = ("_due", "_last_at", "_look", "_moving", "renew")

    def __init__(self, look: _Look) -> None:
        self.renew: list[int] = []
        """Pids of processes that have not run since they were sampled."""
        self._look = look
        self._due: list[tuple[tuple[int, float], int]] = []
        self._moving: list[tuple[tuple[int, float], int]] = []
        """Processes that take turns; they are sampled when no other process is due."""
        self._last_at = 0.0

    def add(self, tracked: Tracked) -> None:
        """Add a process if it is due."""
        look, sample = self._look, tracked.sample
        every, free = look.rate.of(tracked, look.now)
        if look.can_renew(tracked, every):
            # Its activity since the sample is unknown until the table is read again.
            if sample is not None and sample.at < look.read_at:
                self.renew.append(tracked.process.pid)
        elif look.sample_due(tracked, every, free):
            last = sample.at if sample is not None else 0.0
            priority = (0 if tracked.process.role == "rank" else 1, last)
            turns = self._moving if look.takes_turns(tracked) else self._due
            turns.append((priority, tracked.process.pid))
        self._last_at = max(self._last_at, tracked.full_sample_at)

    def chosen(self) -> list[int]:
        """Return the pids to sample: ranks first, then those sampled longest ago."""
        due, look = self._due, self._look
        if self._moving and not due and look.now - self._last_at >= look.rate.apart:
            due = [min(self._moving)]
        return [pid for _, pid in sorted(due)[:MAX_SAMPLES]]


def can_sample(tracked: Tracked, exes: frozenset[str | None] = frozenset()) -> bool:
    """Return whether py-spy can be expected to see anything in a process.

    A child with another title or a renamed interpreter runs the executable of its rank.

    Args:
        tracked: the process.
        exes: executable files of the ranks of its node.
    """
    process = tracked.process
    if process.ended or process.role not in _SAMPLED_ROLES:
        return False
    if process.role != "subprocess":
        return True
    names = (process.comm, *process.cmdline[:1], process.exe or "")
    return any("python" in name for name in names) or (
        process.exe is not None and process.exe in exes
    )


def all_ranks(nodes: Mapping[str, NodeView]) -> dict[str, list[int]]:
    """Return by node the pids of all ranks that can be sampled."""
    return {
        name: [
            pid
            for pid, tracked in view.live.items()
            if tracked.process.role == "rank" and can_sample(tracked)
        ]
        for name, view in nodes.items()
        if view.live
    }


class _Look(NamedTuple):
    """One check of the processes of a node."""

    now: float
    read_at: float
    rate: Rate
    exes: frozenset[str | None] = frozenset()
    """Executable files of the ranks of its node."""

    def takes_turns(self, tracked: Tracked) -> bool:
        """Return whether a process moves, and is not in its first half minute on a screen."""
        if not self.rate.apart or self.quiet(tracked):
            return False
        first = tracked.sample.first_at if tracked.sample is not None else None
        return self.rate.early is None or (first is not None and self.now - first > EARLY)

    def quiet(self, tracked: Tracked) -> bool:
        """Return whether it rested when its table was last read; later activity is unknown."""
        return tracked.moved_at is None or tracked.moved_at < self.read_at - self.rate.rest

    def can_renew(self, tracked: Tracked, every: float) -> bool:
        """Return whether a process has not run since its sample, as far as its table was read."""
        sample, now, again = tracked.sample, self.now, self.rate.again
        if now - self.read_at > max(2 * every, LONG_REST, 2 * self.rate.silent):
            return False
        return (
            sample is not None
            and bool(sample.threads)
            and now - sample.at >= every
            and tracked.still_since(sample.at)
            and not tracked.serves
            and now - tracked.full_sample_at < self._again(tracked, again, again * REAL_MOST)
        )

    def _again(self, tracked: Tracked, first: float, last: float) -> float:
        """Return the seconds between two checks of a resting process: ever more, within bounds."""
        rested = 0.0 if tracked.moved_at is None else self.read_at - tracked.moved_at
        return min(max(first, rested / RESTED), last)

    def sample_due(self, tracked: Tracked, every: float, free: int) -> bool:
        """Return whether to run py-spy; ``free`` samples do not slow it down."""
        sample, now = tracked.sample, self.now
        if sample is None:
            return tracked.attempts == 0 or now - tracked.full_sample_at > every
        if tracked.attempts:
            return now - tracked.full_sample_at > doubled(every, tracked.attempts, REAL_AGAIN)
        age = now - sample.at
        stays = sample.same_functions_since
        if tracked.process.role == "launcher" and stays is not None and stays < sample.at:
            # It polls for ever, and its polls and rests, reported now and then, are no news.
            few = max(every * 6.0 * self.rate.again / REAL_AGAIN, (now - stays) / RESTED)
            return age >= min(few, self.rate.again * REAL_MOST)
        if age > self.rate.rest and self._came_to_rest(tracked):
            return True
        slower = max(tracked.moving_samples - STEADY_MOVES - free, 0)
        factor = 1.0 if tracked.process.role == "rank" else 6.0
        return age >= every * doubled(factor, slower, 6.0)

    def _came_to_rest(self, tracked: Tracked) -> bool:
        """Return whether it ran after its last sample and rests now: the stack of the rest matters.

        A process that keeps waking up in the same functions must rest for longer than usual.
        """
        sample, rest_s = tracked.sample, self.rate.rest
        if sample is None or tracked.moved_at is None or tracked.moved_at <= sample.at:
            return False
        since = sample.same_functions_since
        wakes_often = since is not None and since < sample.at
        return self.read_at - tracked.moved_at > (max(LONG_REST, rest_s) if wakes_often else rest_s)

    def table_due(self, tracked: Tracked, rare: bool) -> bool:
        """Return whether to read its descriptors; ``rare`` says that few ranks share its stack."""
        if tracked.process.role not in _TABLE_ROLES:
            return False
        quiet, rare = self.quiet(tracked), rare or _sleeps_oddly(tracked)
        if not quiet and not (rare and self._goes_round(tracked)):
            return False
        if not (rare or _waits_on_file(tracked)):
            return False
        table = tracked.descriptors
        if table is None:
            return True
        if tracked.moved_at is not None and tracked.moved_at > table.at:
            return self.now - table.at > (ASK_AGAIN if quiet else self.rate.tables)
        # The other ends are searched in all processes of the node, and change seldom.
        return self.now - table.at > self._again(tracked, 2 * ASK_AGAIN, REAL_AGAIN * REAL_MOST)

    def talks(self, tracked: Tracked, processes: Iterable[Tracked]) -> bool:
        """Return whether to read the connections of a polling process, which no stack shows.

        This applies to a program while its rank rests: the program may run every second all the
        same, and gives no stack. It also applies to possible servers: a program that the user
        named, a child of one, a controller, or a rank that a controller has started.
        """
        process, table = tracked.process, tracked.descriptors
        if not _polls(process):
            return False
        if table is not None and self.now - table.at < max(REAL_AGAIN, self.rate.tables):
            return False
        if process.role != "subprocess":
            by_controller = process.launcher == _OF_CONTROLLERS
            return process.is_program or process.role == "launcher" or by_controller
        rank = next((p for p in processes if p.process.pid == process.rank_pid), None)
        if rank is None or rank.process.is_program:
            return rank is not None
        return not can_sample(tracked, self.exes) and self.quiet(rank)

    def _goes_round(self, tracked: Tracked) -> bool:
        """Return whether it runs in the same functions: it may retry a full disk for ever."""
        since = tracked.sample.same_functions_since if tracked.sample is not None else None
        return since is not None and self.now - since >= ROUND_S

    def recorder_due(self, tracked: Tracked) -> bool:
        """Return whether to check a rank's recorder: at once if it can answer, else when it rests.

        A check costs the node a few file names. A resting rank may still write a dump: torch does
        so when a collective times out.
        """
        quiet, now = self.quiet(tracked), self.now
        recorder = tracked.recorder
        if recorder is None:
            return quiet or _has_server(tracked)
        asked = max(recorder.at, tracked.recorder_asked)
        if tracked.moved_at is not None and tracked.moved_at > asked:
            if now - asked <= (QUIET if quiet else ASK_AGAIN):
                return False
            return quiet or _has_server(tracked)
        many = self.rate.again / REAL_AGAIN
        again = self._again(tracked, ASK_AGAIN * many, ASK_LAST * many)
        return recorder.failure is not None and now - asked > again


def _polls(process: Process) -> bool:
    """Return whether the main thread polls; for a program whether any thread does."""
    main = process.main_thread
    threads = process.threads if process.is_program else (main,) if main else ()
    return any((thread.syscall or "").startswith(_POLLS) for thread in threads)


def _has_server(tracked: Tracked) -> bool:
    """Return whether a rank has torch's debug server, which can report its recorder at any time."""
    return any(thread.name == WORKER_SERVER for thread in tracked.process.threads)


def _waits_on_file(tracked: Tracked) -> bool:
    """Return whether the main thread is in a system call on a descriptor, a lock or a disk."""
    main = tracked.process.main_thread
    if main is None:
        return False
    opens = (main.syscall or "").startswith(("open", "stat", "newfstat"))
    return opens or main.fd is not None or main.state == "D" or "lock_inode" in (main.wchan or "")


def _sleeps_oddly(tracked: Tracked) -> bool:
    """Return whether it sleeps unusually: a DataLoader worker between attempts to lock a file.

    This includes a process with a store, which may wait there for ranks that connected elsewhere.
    """
    main = tracked.process.main_thread
    if main is None or not (main.syscall or "").endswith("nanosleep"):
        return False
    names = (thread.name for thread in tracked.process.threads)
    worker = tracked.process.role == "dataloader-worker"
    return worker or any(name.startswith(STORE_THREAD) for name in names)


def _numerics_due(tracked: Tracked, now: float) -> bool:
    """Return whether to read the non-finite values of a rank that checks for them."""
    if VARIABLE not in tracked.process.env:
        return False
    return tracked.numerics_asked is None or now - tracked.numerics_asked > ASK_AGAIN
