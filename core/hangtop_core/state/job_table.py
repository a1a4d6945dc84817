"""The jobs of the newest snapshot; each is rebuilt only when one of its parts has changed."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hangtop_core.attach.wire.messages import MAX_PROCESSES
from hangtop_core.jobs import grouping
from hangtop_core.model.node.places import Places
from hangtop_core.model.snapshot import Job, Left
from hangtop_core.scheduling.ui_priority import SCREENS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from hangtop_core.model.process import Process
    from hangtop_core.state.node_view import NodeView
    from hangtop_core.state.stack_table import StackTable
    from hangtop_core.state.tracked import Tracked

KEEP_GONE = 600.0
"""Seconds for which an exited process stays listed, where nothing else keeps it."""
KEEP_GONE_SUBPROCESS = 60.0
"""Seconds for which an exited subprocess of a rank stays listed: ranks may start ever new ones."""


class JobTable:
    """The assignment of processes to jobs, of all nodes."""

    def __init__(self) -> None:
        self.regroup = True
        """Set where processes may have changed their job."""
        self.keep: frozenset[str] = frozenset()
        """Keys of jobs that stay listed however long ago they ended."""
        self._groups: tuple[grouping.Group, ...] = ()
        self._ranks: dict[str, list[Tracked]] = {}
        """Ranks of each group, in its order."""
        self._by_identity: dict[tuple[str, int, int], Tracked] = {}
        self._last_count = 0
        """Number of processes at the last snapshot."""
        self._jobs: dict[str, Job] = {}
        self._changed: set[str] = set()
        self._slurm_ends: dict[str, str] = {}
        self._job_of: dict[tuple[str, int, int], str] = {}

    def add(self, tracked: Tracked) -> None:
        """Add a new process."""
        self._by_identity[tracked.process.identity] = tracked
        self.regroup = True

    def changed(self, tracked: Tracked) -> None:
        """Note that the job of a rank or launcher must be rebuilt."""
        key = self._job_of.get(tracked.process.identity)
        if key is not None:
            self._changed.add(key)

    def ended_by_slurm(self, key: str, how: str) -> None:
        """Note how Slurm ended a job."""
        self._slurm_ends[key] = how
        self._changed.add(key)

    def publish(self, nodes: Collection[NodeView]) -> tuple[Job, ...]:
        """Return the present jobs."""
        self._last_count = len(self._by_identity)
        if self.regroup:
            self._group(nodes)
        for group in self._groups:
            if group.key in self._changed or group.key not in self._jobs:
                self._jobs[group.key] = self._job(group)
        self._changed.clear()
        return tuple(self._jobs[group.key] for group in self._groups)

    @property
    def rank_count(self) -> int:
        """Return the number of ranks of all jobs in the last snapshot."""
        return sum(len(group.ranks) for group in self._groups)

    @property
    def growth(self) -> float:
        """Return the number of processes divided by that of the last snapshot that had any."""
        return len(self._by_identity) / self._last_count if self._last_count else 1.0

    def outlier_ranks(self, stacks: StackTable) -> dict[str, frozenset[int]]:
        """Return by node the pids of ranks whose main stack few others of their job share."""
        outliers: dict[str, frozenset[int]] = {}
        for ranks in self._ranks.values():
            for node, pids in outlier_ranks(ranks, stacks).items():
                outliers[node] = outliers.get(node, frozenset()) | pids
        return outliers

    def _group(self, nodes: Collection[NodeView]) -> None:
        self.regroup = False
        for view in nodes:
            view.adopt()
        members = [
            grouping.Member(tracked.node, tracked.process, tracked.parent, tracked.info)
            for view in nodes
            for tracked in view.processes()
            if tracked.process.role in ("rank", "launcher")
        ]
        self._groups = grouping.group(members, Places(view.node for view in nodes))
        self._jobs = {}
        self._ranks = {group.key: self._tracked(group.ranks) for group in self._groups}
        self._job_of = {
            member.process.identity: group.key
            for group in self._groups
            for member in (*group.ranks, *group.launchers, *group.unnumbered)
        }

    def _job(self, group: grouping.Group) -> Job:
        launchers = self._tracked(group.launchers)
        return Job(
            key=group.key,
            name=group.name,
            launcher=group.launcher,
            id=group.id,
            world_size=group.world_size,
            master=group.master,
            ranks=tuple([tracked.rank() for tracked in SCREENS.between(self._ranks[group.key])]),
            launchers=tuple(tracked.process for tracked in launchers),
            launcher_samples={
                f"{launcher.node}:{launcher.process.pid}": launcher.sample
                for launcher in launchers
                if launcher.sample is not None
            },
            launcher_descriptors={
                f"{launcher.node}:{launcher.process.pid}": launcher.descriptors
                for launcher in launchers
                if launcher.descriptors is not None
            },
            unnumbered=tuple(tracked.process for tracked in self._tracked(group.unnumbered)),
            nodes=group.nodes,
            hosts=group.hosts,
            former=tuple(_left(member.process) for member in group.former),
            slurm_end=self._slurm_ends.get(group.key, ""),
        )

    def _tracked(self, members: Iterable[grouping.Member]) -> list[Tracked]:
        """Return the tracked processes of members; a contradictory node may name unknown ones."""
        candidates = (self._by_identity.get(member.process.identity) for member in members)
        return [tracked for tracked in candidates if tracked is not None]

    def prune(self, nodes: Iterable[NodeView], now: float) -> None:
        """Drop exited processes that nothing keeps any longer."""
        left = [view for view in nodes if view.gone]
        alive = self.keep | {
            key
            for identity, key in (self._job_of.items() if left else ())
            if not self._by_identity[identity].gone
        }
        for view in left:
            recent = view.gone[-MAX_PROCESSES:]
            kept = [tracked for tracked in recent if self._keep(tracked, alive, now)]
            if len(kept) != len(view.gone):
                for tracked in set(view.gone).difference(kept):
                    self._by_identity.pop(tracked.process.identity, None)
                view.gone = kept
                self.regroup = True

    def _keep(self, tracked: Tracked, alive: frozenset[str], now: float) -> bool:
        process = tracked.process
        age = now - (process.gone_at or now)
        if process.role in ("rank", "launcher"):
            return age < KEEP_GONE or self._job_of.get(tracked.process.identity) in alive
        return age < (KEEP_GONE_SUBPROCESS if process.role == "subprocess" else KEEP_GONE)


def _left(process: Process) -> Left:
    at = process.gone_at or 0.0
    return Left(process.node, process.pid, process.start, process.rank, at, process.exit_code)


def outlier_ranks(ranks: Iterable[Tracked], stacks: StackTable) -> Mapping[str, frozenset[int]]:
    """Return by node the pids of a job's ranks whose main stack few others share."""
    shapes = {
        (tracked.node, tracked.process.pid): stacks.shape(tracked.sample.threads[0].stack)[1]
        for tracked in ranks
        if tracked.sample is not None and tracked.sample.threads
    }
    sizes = Counter(shapes.values())
    if len(sizes) < 2:
        return {}
    largest = max(sizes.values())
    few = max(2, len(shapes) // 8)
    outliers: dict[str, set[int]] = {}
    for (node, pid), shape in shapes.items():
        if sizes[shape] <= few and (sizes[shape] < largest or largest == 1):
            outliers.setdefault(node, set()).add(pid)
    return {node: frozenset(pids) for node, pids in outliers.items()}
