"""The state of the app between updates: snapshots, selection, display settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from hangtop.source.situation import Situation
from hangtop.terminal.spans import line
from hangtop.views.common import find_rank, node_of, rank_key
from hangtop.views.verdict.judged import worst_first
from hangtop_core.jobs.following import pids_of
from hangtop_core.jobs.named import answers_to
from hangtop_core.state.history import History
from hangtop_core.tools.strace import Calls, in_place

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hangtop.terminal.spans import Line
    from hangtop_core.capture import Header
    from hangtop_core.diagnosis import Diagnosis
    from hangtop_core.model.snapshot import Job, Node, Rank, Snapshot
    from hangtop_core.model.updates import Update

TRACE_SECONDS = 10.0
TraceForm = Literal["all", "network", "file", "waits", "lines"]
TRACE_FORMS: tuple[TraceForm, ...] = ("all", "network", "file", "waits", "lines")
"""The forms of a trace: calls folded, all or some of them, or its lines."""


@dataclass
class Trace:
    """One run of strace on one rank."""

    rank_key: str
    title: str
    node: str
    pid: int
    started: float
    seconds: float = TRACE_SECONDS
    lines: list[str] = field(default_factory=list)
    ended: str | None = None
    """How it ended and where it was saved; None while it runs."""
    calls: Calls = field(init=False)
    """The same lines, folded to calls."""
    _drawn: list[Line] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.calls = Calls(self.pid)

    def add(self, lines: Sequence[str]) -> None:
        """Append lines as they arrive."""
        self.lines.extend(lines)
        for text in lines:
            self.calls.add(text)

    def drawn(self, names: Mapping[str, str]) -> list[Line]:
        """Return the lines as they are drawn, each made once: there may be tens of thousands.

        ``names`` maps sockets to their other ends, as `syscalls.in_place` takes them; a line keeps
        the names of the time when it was first drawn.
        """
        new = self.lines[len(self._drawn) :]
        self._drawn += (line(in_place(text, names)) for text in new)
        return self._drawn


@dataclass
class State:
    """The state that screens share; only the app's own thread may use it."""

    readonly: bool = False
    live: bool = True
    files: bool = False
    """Whether dump files are shown, without processes."""
    newest: Update | None = None
    shown: Update | None = None
    paused: bool = False
    history: History = field(default_factory=History)
    job_name: str | None = None
    """Key, name or run id of the job to show first, whenever it appears."""
    job_found: bool = False
    """Whether that job appeared, or another was chosen."""
    job_key: str | None = None
    last_job: Job | None = None
    """The job shown last; its processes identify it when its key changes."""
    rank_key: str | None = None
    node_name: str | None = None
    """The node under the cursor of Nodes."""
    marks: frozenset[str] = frozenset()
    trace_form: TraceForm = "all"
    cut: bool = True
    all_threads: bool = False
    interval: float = 0.0
    """Least seconds between two updates of the screen; collection does not slow down."""
    confirmed: set[str] = field(default_factory=set)
    trace: Trace | None = None
    taken: Header | None = None
    """Header of the capture that is shown."""
    incomplete: bool = False
    """Whether the capture could not be read to its end."""
    writing: bool = False
    """Whether a capture is being written."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """As in `Situation`."""
    in_slurm: bool = False
    """As in `Situation`."""
    unread: dict[str, str] = field(default_factory=dict)
    """Why descriptors could not be read, by rank key."""
    _found: tuple[Update | None, tuple[str | None, str | None], Rank | None] | None = None
    """Cache of the chosen rank: the update, the choice, and the rank in that update."""
    _number: int | None = None
    """The number of the rank that was chosen last, where that is known."""

    @property
    def snapshot(self) -> Snapshot | None:
        """The snapshot on the screen."""
        return self.shown.snapshot if self.shown else None

    @property
    def job(self) -> Job | None:
        """The chosen job; when it has ended, the first job."""
        if self.snapshot is None:
            return None
        return self.snapshot.job(self.job_key) or self.snapshot.job(None)

    @property
    def judged(self) -> bool:
        """Whether the shown snapshot has a diagnosis yet."""
        return self.shown is not None and bool(self.shown.diagnoses)

    @property
    def pause(self) -> float:
        """Seconds after which the next snapshot should arrive at the latest."""
        return max(self.shown.pause_s if self.shown is not None else 1.0, self.interval)

    def note(self, update: Update) -> None:
        """Keep an update as the newest one."""
        self.newest = update
        self.history.add(update)

    def step(self, count: int) -> bool:
        """Show an earlier or later kept snapshot, paused; follow live again past the newest.

        Return False when there is none.
        """
        if self.shown is None:
            return False
        update = self.history.near(self.shown, count)
        if update is None and (count < 0 or not self.live):
            return False
        self.paused = update is not None and self.live
        self.take(update or self.newest)
        return True

    def step_to_end(self, count: int) -> bool:
        """Show the oldest (negative) or newest snapshot; return False when there is none."""
        pictures = self.history.pictures
        if not pictures:
            return False
        last = pictures[0] if count < 0 else self.newest or pictures[-1]
        self.paused = count < 0 and self.live
        self.take(last)
        return True

    def take(self, update: Update | None) -> None:
        """Show another update."""
        self.shown = update
        self.settle_on_job()

    def settle_on_job(self) -> None:
        """Stay with the shown job, whatever else starts, even if its key changes.

        Of several jobs the worst is shown, once it is known which one that is.
        """
        if self.shown is None or not self.shown.snapshot.jobs:
            return
        snapshot = self.shown.snapshot
        if self.live and self.job_key is None and len(snapshot.jobs) > 1 and not self.judged:
            return
        job = self._job_asked_for(snapshot)
        if job is None and self.job_key is not None:
            job = snapshot.job(self.job_key)
        if job is None and self.last_job is not None:
            members = pids_of(self.last_job)
            job = next(
                (candidate for candidate in snapshot.jobs if members & pids_of(candidate)), None
            )
        if job is None:
            job = worst_first(snapshot.jobs, self.shown.diagnoses)[0]
        self.job_key, self.last_job = job.key, job

    def _job_asked_for(self, snapshot: Snapshot) -> Job | None:
        """Return the worst job with the requested name, key or run id, once there is one."""
        if self.job_name is None or self.job_found or self.shown is None:
            return None
        named = [candidate for candidate in snapshot.jobs if answers_to(candidate, self.job_name)]
        self.job_found = bool(named)
        if named and self.job_key is not None:
            self.rank_key, self.marks = None, frozenset()
        return worst_first(named, self.shown.diagnoses)[0] if named else None

    @property
    def diagnosis(self) -> Diagnosis | None:
        """The diagnosis of the chosen job."""
        if self.shown is None:
            return None
        return self.shown.diagnoses.get(self.job.key if self.job else "")

    @property
    def rank(self) -> Rank | None:
        """The chosen rank; without a choice, the best verdict's culprit, else the first."""
        # Each key asks several times, and there may be thousands of ranks to search.
        chosen, cached = (self.job_key, self.rank_key), self._found
        if cached is None or cached[0] is not self.shown or cached[1] != chosen:
            cached = self._found = (self.shown, chosen, self._find())
        return cached[2]

    def choose(self, rank: Rank, key: str) -> None:
        """Make this the rank that actions apply to."""
        self.rank_key, self._number = key, rank.rank

    def _find(self) -> Rank | None:
        job = self.job
        chosen = find_rank(job, self.rank_key, self._number)
        if chosen is not None or job is None:
            self._number = None if chosen is None else chosen.rank
            return chosen
        verdicts = self.diagnosis.verdicts if self.diagnosis else ()
        blamed = {(c.node, c.pid) for c in (verdicts[0].culprits if verdicts else ())}
        for rank in job.members:
            if (rank.node, rank.process.pid) in blamed:
                return rank
        return job.ranks[0] if job.ranks else None

    def node_on(self, screen: str) -> Node | None:
        """Return the current node: on Nodes and GPUs the chosen one, else the chosen rank's."""
        if self.snapshot is None:
            return None
        if screen == "nodes" or (screen == "gpus" and self.node_name is not None):
            return node_of(self.snapshot, self.node_name or "")
        nodes = self.snapshot.nodes
        if self.rank is not None:
            return node_of(self.snapshot, self.rank.node)
        return nodes[0] if len(nodes) == 1 else None

    @property
    def tracing(self) -> bool:
        """Whether a trace is running."""
        return self.trace is not None and self.trace.ended is None

    def targets(self) -> Sequence[Rank]:
        """Return the marked ranks, or the chosen one."""
        job = self.job
        if job is None:
            return ()
        marked = (
            [rank for rank in job.members if rank_key(rank) in self.marks] if self.marks else ()
        )
        return marked or ([self.rank] if self.rank else [])

    def situation(self, screen: str) -> Situation:
        """Return the facts that decide which actions are possible."""
        snapshot, rank = self.snapshot, self.rank
        node = self.node_on(screen)
        runs_on = node_of(snapshot, rank.node) if snapshot and rank else None
        return Situation(
            screen=screen,
            job=self.job,
            rank=rank,
            node=node,
            capabilities=runs_on.capabilities if runs_on else {},
            jobs=len(snapshot.jobs) if snapshot else 0,
            in_slurm=self.in_slurm,
            readonly=self.readonly,
            live=self.live,
            files=self.files,
            tracing=self.tracing,
            traced=self.trace is not None
            and rank is not None
            and self.trace.rank_key == rank_key(rank),
            paused=self.paused,
            later=self.shown is not None and self.history.near(self.shown, 1) is not None,
            writing=self.writing,
            keys=self.keys,
            earlier=self.shown is not None and self.history.near(self.shown, -1) is not None,
        )
