"""What is due on a node by itself: cheap enough to flow, soon enough for a verdict.

A thread that has not run cannot have changed its stack. So every process is sampled once, and
again only after its main thread ran; otherwise its sample is renewed without running py-spy.
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
"""Processes of one node in one round of samples."""
MAX_TABLES = 4
"""Descriptor tables of one node in one round."""
LONG_REST = 7.0
"""Seconds after which even what wakes up now and then rests: torch's DataLoader polls every 5 s
(torch 2.13 torch/utils/data/_utils/__init__.py, MP_STATUS_CHECK_INTERVAL)."""
RESTED = 4.0
"""What is done again and again for a process that rests comes so many times as seldom as it has
rested."""
REAL_MOST = 5.0
"""Times as seldom at most as at first, for what is really sampled again."""
ROUND_S = 4.0
"""Seconds in the same functions after which what a process has open tells something."""
STEADY_MOVES = 6
"""Samples of a moving process at the full rate; then the rate halves, down to a sixth."""
WORKER_SERVER = "pt_workerserver"
"""Name of a rank's debug-server thread: torch 2.13 torch/csrc/distributed/c10d/control_plane."""

_POLLS = ("poll", "ppoll", "select", "pselect", "epoll_")
_OF_CONTROLLERS = "multiprocessing"
"""The launcher of ranks that a program of its own has started, which may give them work."""
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
    odd: frozenset[int],
    read_at: float | None = None,
) -> Plan:
    """Return what is due on one node.

    Args:
        processes: its live processes.
        now: on the head's clock, as the samples.
        rate: how often a process that moves is sampled.
        odd: pids of ranks whose stack few others share.
        read_at: when its process table was last read; None for now.
    """
    exes = frozenset(known.process.exe for known in processes if known.process.role == "rank")
    look = _Look(now, now if read_at is None else read_at, rate, exes)
    stacks = _DueStacks(look)
    tables: list[int] = []
    recorders: list[int] = []
    numerics: list[int] = []
    for known in processes:
        process = known.process
        if process.ended:
            continue
        pid = process.pid
        if can_sample(known, exes):
            stacks.add(known)
        if len(tables) < MAX_TABLES and (
            look.table_due(known, pid in odd) or look.talks(known, processes)
        ):
            tables.append(pid)
        if process.role == "rank":
            if look.recorder_due(known):
                recorders.append(pid)
            if _numerics_due(known, now):
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
        """Those that take turns, which are sampled where nothing else is due."""
        self._last_at = 0.0

    def add(self, known: Tracked) -> None:
        """Add a process where it is due."""
        look, sample = self._look, known.sample
        every, free = look.rate.of(known, look.now)
        if look.can_renew(known, every):
            # What it did since it was sampled is not known before the table is read again.
            if sample is not None and sample.at < look.read_at:
                self.renew.append(known.process.pid)
        elif look.sample_due(known, every, free):
            last = sample.at if sample is not None else 0.0
            priority = (0 if known.process.role == "rank" else 1, last)
            turns = self._moving if look.takes_turns(known) else self._due
            turns.append((priority, known.process.pid))
        self._last_at = max(self._last_at, known.full_sample_at)

    def chosen(self) -> list[int]:
        """Return the pids to sample: ranks first, then what was sampled longest ago."""
        due, look = self._due, self._look
        if self._moving and not due and look.now - self._last_at >= look.rate.apart:
            due = [min(self._moving)]
        return [pid for _, pid in sorted(due)[:MAX_SAMPLES]]


def can_sample(known: Tracked, exes: frozenset[str | None] = frozenset()) -> bool:
    """Whether py-spy can be expected to see anything in a process.

    A child that calls itself something else, or has a renamed interpreter, runs what its rank does.

    Args:
        known: the process.
        exes: executable files of the ranks of its node.
    """
    process = known.process
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
            for pid, known in view.live.items()
            if known.process.role == "rank" and can_sample(known)
        ]
        for name, view in nodes.items()
        if view.live
    }


class _Look(NamedTuple):
    """One look at the processes of a node."""

    now: float
    read_at: float
    rate: Rate
    exes: frozenset[str | None] = frozenset()
    """Executable files of the ranks of its node."""

    def takes_turns(self, known: Tracked) -> bool:
        """Whether it moves, and is not new to somebody who looks."""
        if not self.rate.apart or self.quiet(known):
            return False
        first = known.sample.first_at if known.sample is not None else None
        return self.rate.early is None or (first is not None and self.now - first > EARLY)

    def quiet(self, known: Tracked) -> bool:
        """Whether it rested when its table was last read: of what it did since nothing is known."""
        return known.moved_at is None or known.moved_at < self.read_at - self.rate.rest

    def can_renew(self, known: Tracked, every: float) -> bool:
        """Whether a process has not run since its sample, as far as its table was read."""
        sample, now, again = known.sample, self.now, self.rate.again
        if now - self.read_at > max(2 * every, LONG_REST, 2 * self.rate.silent):
            return False
        return (
            sample is not None
            and bool(sample.threads)
            and now - sample.at >= every
            and known.still_since(sample.at)
            and not known.serves
            and now - known.full_sample_at < self._again(known, again, again * REAL_MOST)
        )

    def _again(self, known: Tracked, first: float, last: float) -> float:
        """Seconds between two looks at a process that rests: ever more, within bounds."""
        rested = 0.0 if known.moved_at is None else self.read_at - known.moved_at
        return min(max(first, rested / RESTED), last)

    def sample_due(self, known: Tracked, every: float, free: int) -> bool:
        """Whether to run py-spy on it; ``free``: samples that do not slow it down."""
        sample, now = known.sample, self.now
        if sample is None:
            return known.attempts == 0 or now - known.full_sample_at > every
        if known.attempts:
            return now - known.full_sample_at > doubled(every, known.attempts, REAL_AGAIN)
        age = now - sample.at
        stays = sample.same_functions_since
        if known.process.role == "launcher" and stays is not None and stays < sample.at:
            # It polls for ever, which is told now and then: neither that nor the rest between is
            # news.
            few = max(every * 6.0 * self.rate.again / REAL_AGAIN, (now - stays) / RESTED)
            return age >= min(few, self.rate.again * REAL_MOST)
        if age > self.rate.rest and self._came_to_rest(known):
            return True
        slower = max(known.moving_samples - STEADY_MOVES - free, 0)
        factor = 1.0 if known.process.role == "rank" else 6.0
        return age >= every * doubled(factor, slower, 6.0)

    def _came_to_rest(self, known: Tracked) -> bool:
        """Whether it ran after its last sample and rests now: what it rests in is what matters.

        One that keeps waking up in the same functions has to rest for longer than it usually does.
        """
        sample, rest = known.sample, self.rate.rest
        if sample is None or known.moved_at is None or known.moved_at <= sample.at:
            return False
        since = sample.same_functions_since
        wakes_often = since is not None and since < sample.at
        return self.read_at - known.moved_at > (max(LONG_REST, rest) if wakes_often else rest)

    def table_due(self, known: Tracked, odd: bool) -> bool:
        """Whether to read its descriptors; ``odd``: few ranks are on its stack."""
        if known.process.role not in _TABLE_ROLES:
            return False
        quiet, odd = self.quiet(known), odd or _sleeps_oddly(known)
        if not quiet and not (odd and self._goes_round(known)):
            return False
        if not (odd or _waits_on_file(known)):
            return False
        table = known.descriptors
        if table is None:
            return True
        if known.moved_at is not None and known.moved_at > table.at:
            return self.now - table.at > (ASK_AGAIN if quiet else self.rate.tables)
        # Who is at the other ends is looked for in all processes of the node, and changes seldom.
        return self.now - table.at > self._again(known, 2 * ASK_AGAIN, REAL_AGAIN * REAL_MOST)

    def talks(self, known: Tracked, processes: Iterable[Tracked]) -> bool:
        """Whether to read the connections of what polls them, which no stack tells.

        Those of a program while its rank rests: it may run every second all the same, and gives no
        stack. And those of what may be a server: a program that was named, a child of one, a
        controller, or a rank that one has started.
        """
        process, table = known.process, known.descriptors
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
        return not can_sample(known, self.exes) and self.quiet(rank)

    def _goes_round(self, known: Tracked) -> bool:
        """Whether it runs in the same functions: it may try to write to a full disk for ever."""
        since = known.sample.same_functions_since if known.sample is not None else None
        return since is not None and self.now - since >= ROUND_S

    def recorder_due(self, known: Tracked) -> bool:
        """Whether to look for a rank's recorder: at once where it can answer, else when it rests.

        Looking costs the node a few file names. A rank that rests may yet write a dump: torch does
        so when a collective times out.
        """
        quiet, now = self.quiet(known), self.now
        recorder = known.recorder
        if recorder is None:
            return quiet or _has_server(known)
        asked = max(recorder.at, known.recorder_asked)
        if known.moved_at is not None and known.moved_at > asked:
            if now - asked <= (QUIET if quiet else ASK_AGAIN):
                return False
            return quiet or _has_server(known)
        many = self.rate.again / REAL_AGAIN
        again = self._again(known, ASK_AGAIN * many, ASK_LAST * many)
        return recorder.failure is not None and now - asked > again


def _polls(process: Process) -> bool:
    """Whether the main thread polls; of a program whether any thread does."""
    main = process.main_thread
    threads = process.threads if process.is_program else (main,) if main else ()
    return any((thread.syscall or "").startswith(_POLLS) for thread in threads)


def _has_server(known: Tracked) -> bool:
    """Whether a rank has torch's debug server, which can tell of its recorder at any time."""
    return any(thread.name == WORKER_SERVER for thread in known.process.threads)


def _waits_on_file(known: Tracked) -> bool:
    """Whether the main thread is in a system call on a descriptor, a lock or a disk."""
    main = known.process.main_thread
    if main is None:
        return False
    opens = (main.syscall or "").startswith(("open", "stat", "newfstat"))
    return opens or main.fd is not None or main.state == "D" or "lock_inode" in (main.wchan or "")


def _sleeps_oddly(known: Tracked) -> bool:
    """Whether it sleeps where others do not: a DataLoader worker between attempts to lock a file.

    Or one that has a store, and may wait there for ranks that went elsewhere.
    """
    main = known.process.main_thread
    if main is None or not (main.syscall or "").endswith("nanosleep"):
        return False
    names = (thread.name for thread in known.process.threads)
    worker = known.process.role == "dataloader-worker"
    return worker or any(name.startswith(STORE_THREAD) for name in names)


def _numerics_due(known: Tracked, now: float) -> bool:
    """Whether to read what a rank has found that is not finite, where it looks for that."""
    if VARIABLE not in known.process.env:
        return False
    return known.numerics_asked is None or now - known.numerics_asked > ASK_AGAIN
