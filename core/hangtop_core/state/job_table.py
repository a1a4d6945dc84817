"""The jobs of the newest picture, each made anew only where something of it has changed."""

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
"""Seconds a process that left stays listed, where nothing else keeps it."""
KEEP_GONE_SUBPROCESS = 60.0
"""The same of what a rank has started: there may be ever new ones."""


class JobTable:
    """Which processes make which jobs, of all nodes."""

    def __init__(self) -> None:
        self.regroup = True
        """Set where processes may belong to other jobs than they did."""
        self.keep: frozenset[str] = frozenset()
        """Keys of jobs that stay listed however long ago they ended."""
        self._groups: tuple[grouping.Group, ...] = ()
        self._ranks: dict[str, list[Tracked]] = {}
        """Those of each group, in its order."""
        self._by_identity: dict[tuple[str, int, int], Tracked] = {}
        self._seen = 0
        """How many of them are in the last picture."""
        self._jobs: dict[str, Job] = {}
        self._changed: set[str] = set()
        self._slurm_ends: dict[str, str] = {}
        self._job_of: dict[tuple[str, int, int], str] = {}

    def add(self, known: Tracked) -> None:
        """Take a process that is new."""
        self._by_identity[known.process.identity] = known
        self.regroup = True

    def changed(self, known: Tracked) -> None:
        """Note that the job of a rank or launcher is to be made anew."""
        key = self._job_of.get(known.process.identity)
        if key is not None:
            self._changed.add(key)

    def ended_by_slurm(self, key: str, how: str) -> None:
        """Note how Slurm ended a job."""
        self._slurm_ends[key] = how
        self._changed.add(key)

    def publish(self, nodes: Collection[NodeView]) -> tuple[Job, ...]:
        """Return the jobs as they are now."""
        self._seen = len(self._by_identity)
        if self.regroup:
            self._group(nodes)
        for group in self._groups:
            if group.key in self._changed or group.key not in self._jobs:
                self._jobs[group.key] = self._job(group)
        self._changed.clear()
        return tuple(self._jobs[group.key] for group in self._groups)

    @property
    def rank_count(self) -> int:
        """Ranks of all jobs, as of the last picture."""
        return sum(len(group.ranks) for group in self._groups)

    @property
    def growth(self) -> float:
        """How many times as many processes there are as in the last picture that had any."""
        return len(self._by_identity) / self._seen if self._seen else 1.0

    def odd_ranks(self, stacks: StackTable) -> dict[str, frozenset[int]]:
        """Return by node the pids of ranks whose main stack few others of their job share."""
        found: dict[str, frozenset[int]] = {}
        for ranks in self._ranks.values():
            for node, pids in odd_ranks(ranks, stacks).items():
                found[node] = found.get(node, frozenset()) | pids
        return found

    def _group(self, nodes: Collection[NodeView]) -> None:
        self.regroup = False
        for view in nodes:
            view.adopt()
        members = [
            grouping.Member(known.node, known.process, known.parent, known.told)
            for view in nodes
            for known in view.processes()
            if known.process.role in ("rank", "launcher")
        ]
        self._groups = grouping.group(members, Places(view.node for view in nodes))
        self._jobs = {}
        self._ranks = {group.key: self._found(group.ranks) for group in self._groups}
        self._job_of = {
            member.process.identity: group.key
            for group in self._groups
            for member in (*group.ranks, *group.launchers, *group.unnumbered)
        }

    def _job(self, group: grouping.Group) -> Job:
        launchers = self._found(group.launchers)
        return Job(
            key=group.key,
            name=group.name,
            launcher=group.launcher,
            id=group.id,
            world_size=group.world_size,
            master=group.master,
            ranks=tuple([known.rank() for known in SCREENS.between(self._ranks[group.key])]),
            launchers=tuple(known.process for known in launchers),
            launcher_samples={
                f"{one.node}:{one.process.pid}": one.sample
                for one in launchers
                if one.sample is not None
            },
            launcher_descriptors={
                f"{one.node}:{one.process.pid}": one.descriptors
                for one in launchers
                if one.descriptors is not None
            },
            unnumbered=tuple(known.process for known in self._found(group.unnumbered)),
            nodes=group.nodes,
            hosts=group.hosts,
            former=tuple(_left(member.process) for member in group.former),
            slurm_end=self._slurm_ends.get(group.key, ""),
        )

    def _found(self, members: Iterable[grouping.Member]) -> list[Tracked]:
        """What is known of members; a node that contradicts itself may name one of nobody."""
        known = (self._by_identity.get(member.process.identity) for member in members)
        return [one for one in known if one is not None]

    def prune(self, nodes: Iterable[NodeView], now: float) -> None:
        """Drop processes that left, once nothing keeps them."""
        left = [view for view in nodes if view.gone]
        alive = self.keep | {
            key
            for identity, key in (self._job_of.items() if left else ())
            if not self._by_identity[identity].gone
        }
        for view in left:
            recent = view.gone[-MAX_PROCESSES:]
            kept = [known for known in recent if self._keep(known, alive, now)]
            if len(kept) != len(view.gone):
                for known in set(view.gone).difference(kept):
                    self._by_identity.pop(known.process.identity, None)
                view.gone = kept
                self.regroup = True

    def _keep(self, known: Tracked, alive: frozenset[str], now: float) -> bool:
        process = known.process
        age = now - (process.gone_at or now)
        if process.role in ("rank", "launcher"):
            return age < KEEP_GONE or self._job_of.get(known.process.identity) in alive
        return age < (KEEP_GONE_SUBPROCESS if process.role == "subprocess" else KEEP_GONE)


def _left(process: Process) -> Left:
    at = process.gone_at or 0.0
    return Left(process.node, process.pid, process.start, process.rank, at, process.exit_code)


def odd_ranks(ranks: Iterable[Tracked], stacks: StackTable) -> Mapping[str, frozenset[int]]:
    """Return by node the pids of a job's ranks whose main stack few others share."""
    shapes = {
        (known.node, known.process.pid): stacks.shape(known.sample.threads[0].stack)[1]
        for known in ranks
        if known.sample is not None and known.sample.threads
    }
    sizes = Counter(shapes.values())
    if len(sizes) < 2:
        return {}
    largest = max(sizes.values())
    few = max(2, len(shapes) // 8)
    found: dict[str, set[int]] = {}
    for (node, pid), shape in shapes.items():
        if sizes[shape] <= few and (sizes[shape] < largest or largest == 1):
            found.setdefault(node, set()).add(pid)
    return {node: frozenset(pids) for node, pids in found.items()}
