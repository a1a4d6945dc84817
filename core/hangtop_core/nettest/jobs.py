"""Real jobs with torch over the nodes; after a failure smaller ones, until the culprit is known."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from hangtop_core.nettest import culprits, schedule
from hangtop_core.nettest.facts import SETTING, JobRun, Member
from hangtop_core.nettest.ranks import Ranks
from hangtop_core.text.clean import plural

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hangtop_core.nettest.asking import Nodes
    from hangtop_core.nettest.facts import Facts, Wanted

GROUP = 8
"""Maximum number of nodes in one of the jobs that search for the culprit."""
PAIR_LIMIT_S = 5.0
"""Seconds for each wait of ranks in a job of two: there may be many such jobs."""
BRIEF = ("store", "init", "barrier", "all_reduce")
SENDING = (*BRIEF, "bandwidth")
"""For a job that failed only when much data is sent."""
WHOLE = (*SENDING, "numerics")
ON_GPU = (*WHOLE, "memory")
ALONE = ("memory", "numerics")


class _Unit(NamedTuple):
    """The smallest part that a failure is traced to: a node with all its ranks, or one GPU."""

    name: str
    members: tuple[Member, ...]


class Jobs:
    """The jobs of one test."""

    def __init__(self, nodes: Nodes, facts: Facts, wanted: Wanted) -> None:
        self._nodes = nodes
        self._facts = facts
        self._wanted = wanted
        self._pythons = _pythons(facts)
        self._ranks = Ranks(nodes, self._pythons)
        self._smaller = 0

    def run(self) -> None:
        """Run a job by gloo and, with GPUs, one by NCCL, and smaller jobs if one fails."""
        members = self._members()
        if not members:
            return
        self._over(members, "gloo")
        gpus = [
            Member(node, f"gpu{index}", f"cuda:{index}")
            for node in dict.fromkeys(member.node for member in members)
            if "nccl" in self._facts.torch[node].backends
            for index in range(len(self._facts.torch[node].gpus))
        ]
        if gpus:
            _, failed = self._ranks.start([(member.node, member.name) for member in gpus])
            self._facts.left_out.update(failed)
            self._over([member for member in gpus if member.node not in failed], "nccl")
        self._facts.lines = {node: tuple(printed) for node, printed in self._ranks.lines.items()}

    def close(self) -> None:
        """End all processes with torch."""
        self._ranks.close()

    def _members(self) -> list[Member]:
        """Start a process on each usable node; two if there is only one node."""
        facts = self._facts
        nodes = self._connected_nodes()
        names = ("0", "1") if len(facts.nodes) == 1 else ("0",)
        if not nodes:
            return []
        hellos, failed = self._ranks.start([(node, name) for node in nodes for name in names])
        facts.no_torch.update(failed)
        facts.torch.update({place[0]: hello for place, hello in hellos.items()})
        return [
            Member(node, name)
            for node in nodes
            if node not in failed and "gloo" in facts.torch[node].backends
            for name in names
        ]

    def _connected_nodes(self) -> list[str]:
        """Return the nodes with torch whose connections work; note the others."""
        facts = self._facts
        nodes = [node for node in facts.spots if node in self._pythons]
        blocked = _blocked(facts)
        facts.left_out.update({node: blocked[node] for node in nodes if node in blocked})
        return [node for node in nodes if node not in blocked]

    def _over(self, members: Sequence[Member], backend: str) -> None:
        """Run a job over all; if it fails, again with its interface named, then smaller ones.

        A wrong interface makes a job fail without settings that works with the interface named; so
        the first job runs without.
        """
        members = self._with_host_first(members)
        if len(members) < 2 and backend == "gloo":
            return
        steps = WHOLE if backend == "gloo" else ON_GPU
        self._nodes.tell(f"a job of {len(members)} ranks by {backend}")
        forced = False
        order = self._orders(steps, backend).of([members])
        run = self._ranks.run([members], order, self._wanted.limit, backend)[0]
        self._facts.jobs.append(run)
        if not run.ok and self._may_take_another(run):
            forced = True
            order = self._orders(steps, backend, forced).of([members])
            again = self._ranks.run([members], order, self._wanted.limit, backend)[0]
            run = replace(again, forced=True)
            self._facts.jobs.append(run)
        units = _by_node(members)
        if len(units) == 1 and backend == "nccl":
            units = [_Unit(member.place, (member,)) for member in members]
        if not run.ok:
            late = any(outcome.step == "bandwidth" for outcome in run.outcomes)
            self._bisect(units, SENDING if late else BRIEF, backend, forced)
        elif self._wanted.pairs:
            order = self._orders(SENDING, backend, forced)
            for pairs in schedule.rounds(units):
                self._run_several(pairs, order, backend, self._wanted.limit)

    def _may_take_another(self, run: JobRun) -> bool:
        """Whether ranks without settings may use another interface than the tested one.

        gloo uses the address that the node's own name resolves to, NCCL has rules of its own.
        """
        if any(outcome.wrong and outcome.step != "store" for outcome in run.outcomes):
            return False
        return run.backend != "gloo" or any(map(self._facts.is_misled, run.nodes))

    def _with_host_first(self, members: Sequence[Member]) -> list[Member]:
        """Give rank 0, and so the store, to a node whose chosen port is free."""
        free = {
            node
            for node, ports in self._facts.opened.items()
            if any(port.asked and port.port is not None for port in ports)
        }
        return sorted(members, key=lambda member: member.node not in free)

    def _orders(self, steps: Sequence[str], backend: str, forced: bool = False) -> _Orders:
        return _Orders(self._facts, steps, SETTING[backend] if forced else None, self._wanted.size)

    def _run_several(
        self, jobs: Sequence[Sequence[_Unit]], order: _Orders, backend: str, limit: float
    ) -> list[bool]:
        """Run jobs without common units; return which of them succeeded.

        Two jobs with their stores on one node, such as those of its GPUs, would use the same port:
        they run one after the other. A single member has no store.
        """
        members = [[member for unit in units for member in unit.members] for units in jobs]
        runs: list[JobRun] = []
        for turn in _turns(members):
            many = plural(len(turn), "smaller job")
            self._nodes.tell(f"{many} by {backend} at once, after {self._smaller}")
            self._smaller += len(turn)
            runs += self._ranks.run(turn, order.of(turn), limit, backend)
        for units, run in zip(jobs, runs, strict=True):
            if len(units) <= 2:
                names = tuple(unit.name for unit in units)
                smaller = replace(run, forced=order.setting is not None, units=names)
                (self._facts.pair_jobs if len(units) == 2 else self._facts.alone).append(smaller)
        return [run.ok for run in runs]

    def _bisect(self, units: list[_Unit], steps: Sequence[str], backend: str, forced: bool) -> None:
        """Find the pairs for which a job of these steps fails, without trying all of very many.

        Groups run first, all at the same time; inside a failing group every pair; if none fails,
        groups two by two, and then pairs between two that fail together. GPUs first run alone.
        """
        limit = min(self._wanted.limit, PAIR_LIMIT_S)
        if backend == "nccl" and not self._work_alone(units, forced, limit):
            return
        if len(units) < 3:
            return
        order = self._orders(steps, backend, forced)
        groups = schedule.groups(units, GROUP)
        failing = groups if len(groups) == 1 else self._failing(groups, order, backend, limit)
        for rounds in zip_longest(*(schedule.rounds(group) for group in failing), fillvalue=[]):
            self._run_several([pair for pairs in rounds for pair in pairs], order, backend, limit)
        if not failing:
            self._pairs_across(groups, order, backend, limit)

    def _work_alone(self, units: Sequence[_Unit], forced: bool, limit: float) -> bool:
        """Run a job on each GPU alone; return whether all of them work."""
        gpus = [[_Unit(member.place, (member,))] for unit in units for member in unit.members]
        return all(self._run_several(gpus, self._orders(ALONE, "nccl", forced), "nccl", limit))

    def _failing(
        self, groups: Sequence[list[_Unit]], order: _Orders, backend: str, limit: float
    ) -> list[list[_Unit]]:
        """Run a job of each group; return the failing groups."""
        good = self._run_several(groups, order, backend, limit)
        return [group for group, fine in zip(groups, good, strict=True) if not fine]

    def _pairs_across(
        self, groups: list[list[_Unit]], order: _Orders, backend: str, limit: float
    ) -> None:
        """Run groups two by two, and the pairs between two groups that fail together."""
        for pairs in schedule.rounds(groups):
            good = self._run_several([[*a, *b] for a, b in pairs], order, backend, limit)
            for (a, b), fine in zip(pairs, good, strict=True):
                for units in () if fine else schedule.across(a, b):
                    self._run_several(units, order, backend, limit)


def _turns(jobs: Sequence[list[Member]]) -> list[list[list[Member]]]:
    """Split jobs, in their order, into turns without two stores on one node."""
    turns: list[list[list[Member]]] = []
    hosts: set[str] = set()
    for job in jobs:
        if not turns or (len(job) > 1 and job[0].node in hosts):
            turns.append([])
            hosts = set()
        turns[-1].append(job)
        hosts |= {job[0].node} if len(job) > 1 else set()
    return turns


class _Orders:
    """Options of the members of jobs beyond their rank."""

    def __init__(self, facts: Facts, steps: Sequence[str], setting: str | None, size: int) -> None:
        self.setting = setting
        self._facts = facts
        self._steps = list(steps)
        self._size = size
        self._hosts: dict[Member, Member] = {}

    def of(self, jobs: Sequence[Sequence[Member]]) -> _Orders:
        """Make the first member of each job its store's host."""
        self._hosts = {member: job[0] for job in jobs for member in job}
        return self

    def __call__(self, member: Member) -> Mapping[str, Any]:
        """Return the options of one member; the first of its job hosts the store."""
        facts = self._facts
        host = self._hosts.get(member, member)
        environ = {"NCCL_DEBUG": "INFO"} if member.device != "cpu" else {}
        if self.setting is not None:
            environ[self.setting] = facts.spots[member.node].interface
        return {
            "store": [facts.spots[host.node].address, facts.port],
            "steps": self._steps,
            "bytes": self._size,
            "environ": environ,
        }


def _pythons(facts: Facts) -> dict[str, str]:
    """Return by node the interpreter with torch; note nodes without one."""
    interpreters = {}
    for node in facts.present:
        tried = facts.looked[node].pythons
        with_torch = next((python for python in tried if python.torch is not None), None)
        if with_torch is not None:
            interpreters[node] = with_torch.path
            continue
        paths = ", ".join(python.path for python in tried) or "any Python"
        why = next((python.why for python in tried if python.why), None)
        facts.no_torch[node] = f"{paths}: {why}" if why else f"no torch in {paths}"
    return interpreters


def _blocked(facts: Facts) -> dict[str, str]:
    """Return the nodes with too many failing connections: a job with them only waits."""
    reasons: dict[str, str] = {}
    for kind in ("chosen", "any"):
        for culprit in culprits.of_kind(facts, kind):
            if culprit.what in ("into", "from", "both"):
                reasons[culprit.nodes[0]] = "its connections fail"
            elif culprit.what in ("all", "some"):
                reasons |= dict.fromkeys(culprit.nodes, "too many connections fail")
            elif len(facts.present) == 2:
                reasons |= dict.fromkeys(culprit.nodes, "their connections fail")
            elif not set(culprit.nodes) & set(reasons):
                reasons[culprit.nodes[1]] = f"connections between it and {culprit.nodes[0]} fail"
    return reasons


def _by_node(members: Sequence[Member]) -> list[_Unit]:
    by_node: dict[str, list[Member]] = {}
    for member in members:
        by_node.setdefault(member.node, []).append(member)
    return [_Unit(node, tuple(ranks)) for node, ranks in by_node.items()]
