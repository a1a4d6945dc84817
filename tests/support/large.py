"""A store that has heard of many nodes: what real probes said, folded in without any connection."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.attach.wire import messages
from hangtop_core.collect.answers import Answers
from hangtop_core.state.store import Store
from simulated.node import SimulatedNode
from simulated.story import Story

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hangtop_core.diagnosis import Diagnosis
    from hangtop_core.model.snapshot import Job, Snapshot

EPOCH = 1_767_225_600.0
HANG_AFTER = 10.0


class Large:
    """A job on many nodes of 8 ranks, as the session's thread knows it; time comes from outside."""

    def __init__(self, nodes: int, *, silent: Iterable[int] = (), **story: Any) -> None:
        """``silent`` nodes are never heard of; ``story`` is as in `simulated.story`."""
        self.story = Story(nodes=nodes, **story)
        self.store = Store()
        self.answers = Answers(self.store)
        self.complaints: list[str] = []
        self._nodes: dict[str, SimulatedNode] = {}
        unheard = frozenset(silent)
        for number in range(nodes):
            name = self.story.name(number)
            self.store.add_node(name, EPOCH)
            if number not in unheard:
                node = self._nodes[name] = SimulatedNode(number, self.story, EPOCH)
                hello = messages.decode(node.hello(0.0)["hello"], messages.Hello)
                self.store.change_node(name, {"state": "ready", **hello.facts()})
                self.store.connected(name, EPOCH, False, EPOCH)
                self._answers(node, {"op": "watch", "id": 1, "interval": 1.0}, 0.0)

    def _answers(self, node: SimulatedNode, request: dict[str, Any], now: float) -> list[Any]:
        return [said["data"] for said in node.answer(request, now) if "data" in said]

    def change(self, **story: Any) -> None:
        """Let the story go on otherwise: `churn`, `hang_at`."""
        self.story = replace(self.story, **story)
        for node in self._nodes.values():
            node.story = self.story

    def say(self, now: float) -> list[tuple[str, Any]]:
        """What all nodes say of their processes at a time."""
        found = []
        for name, node in self._nodes.items():
            said = node.tick(now)
            if said is not None:
                self._answers(node, {"op": "credit", "id": 1, "n": 1}, now)
                found.append((name, said["data"]))
        return found

    def fold(self, said: Iterable[tuple[str, Any]]) -> None:
        """Fold what nodes have said."""
        for name, raw in said:
            piece = messages.decode(raw, messages.WatchPiece)
            self.store.fold_watch(name, piece, self.complaints.append)

    def hear(self, now: float) -> None:
        """Fold what all nodes say of their processes at a time."""
        self.fold(self.say(now))

    def sample(self, now: float) -> None:
        """Fold stacks of all processes, taken at a time."""
        for name, node in self._nodes.items():
            request = {"op": "stacks", "id": 2, "pids": list(self.store.nodes[name].live)}
            for raw in self._answers(node, request, now):
                self.answers.stacks(name, messages.decode(raw, messages.StackPiece))

    def picture(self, now: float) -> tuple[Snapshot, Job, Diagnosis]:
        """A snapshot, its job, and what is concluded."""
        snapshot = self.store.publish(EPOCH + now)
        (job,) = snapshot.jobs
        return snapshot, job, diagnose(snapshot, job, HANG_AFTER)


class _Number(int):
    """A number of which each comparison runs in Python, and so is counted."""

    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        return int.__eq__(self, other)


class _Name(str):
    """A name likewise."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other)


def counted(snapshot: Snapshot) -> Snapshot:
    """The same, of whose ranks, pids and nodes `operations` sees each comparison.

    Those in `x in names`, `names.index(x)` or of two ranks are made by C, which is not counted.
    """
    jobs = []
    for job in snapshot.jobs:
        ranks = []
        for rank in job.ranks:
            number, node = _Number(rank.rank), _Name(rank.node)
            process = replace(rank.process, pid=_Number(rank.process.pid), node=node)
            ranks.append(replace(rank, rank=number, node=node, process=process))
        jobs.append(replace(job, ranks=tuple(ranks)))
    return replace(snapshot, jobs=tuple(jobs))


def operations(work: Callable[[], object]) -> int:
    """How many lines of Python run for something: the same on every machine, however busy.

    Each round of a generator or a comprehension counts. What C does by itself does not: of what is
    compared in lists and tuples see `counted`.
    """
    count = 0

    def trace(*_: object) -> Callable[..., Any]:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count
