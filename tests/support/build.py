"""Builders of synthetic snapshots from real stacks and thread facts, those of `situations`.

Tests name a situation and get the rank that is in it.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.model.meters import Meters
from hangtop_core.model.recorder.columns import trace_of
from hangtop_core.model.snapshot import (
    DescriptorTable,
    Failure,
    Job,
    Node,
    Process,
    Rank,
    Recorder,
    Snapshot,
    StackSample,
    Thread,
    ThreadStack,
)
from hangtop_probe.recorder.columns import reduce
from support.situations import BACKWARD, FUTEX, GLOO_THREADS, Facts, Stack, c10d, thread

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hangtop_core.diagnosis import Diagnosis, Verdict

NOW = 1_800_000_000.0
"""The time of every built snapshot."""
ATTACHED = NOW - 60.0
"""Since when its job has been watched."""
HUNG_SINCE = NOW - 300.0
"""When its ranks stopped."""


class World:
    """Collects stacks and ranks, and makes a snapshot of them."""

    def __init__(self, at: float = NOW, observed_since: float = ATTACHED) -> None:
        self.at = at
        self.observed_since = observed_since
        self.stacks: dict[str, Stack] = {}
        self.ranks: list[Rank] = []
        self.nodes: dict[str, Node] = {}

    def key(self, stack: Stack) -> str:
        """Register a stack and give its key."""
        text = "\n".join(f"{f.name}|{f.file}|{f.line}|{f.source}" for f in stack)
        key = blake2b(text.encode(), digest_size=8).hexdigest()
        self.stacks[key] = stack
        return key

    def sample(
        self,
        stack: Stack | None,
        *,
        pid: int = 0,
        active: bool = False,
        gil: bool = False,
        others: Sequence[tuple[str, int, Stack, bool]] = (),
        same_since: float | None = None,
        same_functions_since: float | None = None,
        failure: Failure | None = None,
        count: int = 10,
    ) -> StackSample:
        """One sample; `others` are further threads: name, thread id, stack, holds the GIL."""
        threads = []
        if stack is not None:
            threads = [ThreadStack(pid, "MainThread", active, gil, self.key(stack))]
            threads += [ThreadStack(t, n, False, g, self.key(s)) for n, t, s, g in others]
        first = self.observed_since + 1.0
        return StackSample(
            at=self.at - 0.5,
            took_s=0.02,
            mode="nonblocking",
            threads=tuple(threads),
            failure=failure,
            count=count,
            same_since=first if same_since is None else same_since,
            same_functions_since=first if same_functions_since is None else same_functions_since,
            first_at=first,
        )

    def process(self, pid: int, facts: Facts | None, **fields: Any) -> Process:
        """One process with the threads of a gloo rank."""
        extra: tuple[Thread, ...] = fields.pop("threads", ())
        threads: tuple[Thread, ...] = ()
        if facts is not None:
            gloo = tuple(
                Thread(pid + 1 + i, name, "S", wchan, call)
                for i, (name, wchan, call) in enumerate(GLOO_THREADS)
            )
            threads = (thread(pid, facts), *gloo, *extra)
        defaults: dict[str, Any] = {
            "ppid": 100,
            "start": pid * 7,
            "started_at": self.at - 600.0,
            "role": "rank",
            "label": "rank",
            "state": facts[0] if facts else "S",
            "uid": 1000,
            "user": "me",
            "comm": "python3",
            "cmdline": ("python3", "-u", "train.py"),
            "threads": threads,
            "meters": Meters(),
        }
        return Process(pid=pid, **{**defaults, **fields})

    def add(
        self,
        stack: Stack | None,
        facts: Facts | None,
        *,
        rank: int | None = None,
        node: str = "n1",
        process: Mapping[str, Any] | None = None,
        sample: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Rank:
        """Add a rank whose main thread has this stack and these thread facts."""
        number = len(self.ranks) if rank is None else rank
        given = dict(process or {})
        pid = given.pop("pid", 4000 + number * 10)
        taken = self.sample(stack, pid=pid, **(sample or {}))
        env = {"RANK": str(number), "LOCAL_RANK": str(number), "MASTER_PORT": "29500"}
        states = {"R": "running", "T": "stopped", "t": "traced", "D": "disk-wait", "Z": "zombie"}
        own = self.process(pid, facts, **{"rank": number, "rank_pid": pid, "env": env, **given})
        defaults: dict[str, Any] = {
            "state": states.get(facts[0] if facts else "S", "sleeping"),
            "moved_at": HUNG_SINCE if facts and facts[0] != "R" else self.at,
            "cpu_share": 0.0,
        }
        one = Rank(
            rank=number,
            node=node,
            process=own,
            sample=taken,
            **{**defaults, **fields},
        )
        self.ranks.append(one)
        return one

    def waiters(
        self, count: int, stack: Stack | None = None, facts: Facts = FUTEX, **fields: Any
    ) -> None:
        """Add ranks that wait in an all_reduce (or in `stack`)."""
        for _ in range(count):
            self.add(stack or c10d("all_reduce"), facts, **fields)

    def worker(
        self, of: Rank, stack: Stack, facts: Facts, number: int = 0, **fields: Any
    ) -> tuple[Process, StackSample]:
        """A DataLoader worker of a rank."""
        pid = of.process.pid + 1000 + number
        process = self.process(
            pid,
            facts,
            role="dataloader-worker",
            label=f"DataLoader worker {number}",
            rank=of.rank,
            rank_pid=of.process.pid,
            worker_id=number,
            **fields,
        )
        return process, self.sample(stack, pid=pid)

    def give_children(
        self,
        rank: Rank,
        children: Iterable[tuple[Process, StackSample | None]],
        moved_at: float | None = HUNG_SINCE,
        tables: Mapping[int, DescriptorTable] | None = None,
    ) -> Rank:
        """Replace a rank by itself with children."""
        pairs = list(children)
        new = msgspec.structs.replace(
            rank,
            children=tuple(process for process, _ in pairs),
            child_samples={p.pid: s for p, s in pairs if s is not None},
            child_moved_at={p.pid: moved_at for p, _ in pairs if moved_at is not None},
            child_descriptors=dict(tables or {}),
        )
        self.ranks[self.ranks.index(rank)] = new
        return new

    def snapshot(self, **fields: Any) -> Snapshot:
        """The snapshot, with one job of all ranks; fields go to the job."""
        nodes = sorted({rank.node for rank in self.ranks} | set(self.nodes))
        defaults: dict[str, Any] = {
            "key": "none@n1:29500",
            "name": "train.py",
            "launcher": "torchrun",
            "id": "none",
            "world_size": len(self.ranks),
            "master": "n1:29500",
            "ranks": tuple(sorted(self.ranks, key=lambda one: one.rank)),
            "nodes": tuple(nodes),
        }
        return Snapshot(
            at=self.at,
            observed_since=self.observed_since,
            tick=60,
            nodes=tuple(self.nodes.get(name, Node(name, "ready")) for name in nodes),
            jobs=(Job(**{**defaults, **fields}),),
            stacks=dict(self.stacks),
        )


def recorder(ops: Sequence[str], completed: int, group: str = "0") -> Recorder:
    """A recorder that has issued `ops` in order, of which the first ones are completed."""
    entries = [
        {
            "process_group": (group, "default_pg"),
            "pg_id": 0,
            "collective_seq_id": seq,
            "profiling_name": op,
            "input_sizes": [[8]],
            "state": "completed" if seq <= completed else "scheduled",
            "record_id": seq - 1,
            "time_created_ns": int(HUNG_SINCE * 1e9),
        }
        for seq, op in enumerate(ops, 1)
    ]
    trace = trace_of(reduce({"version": "2.10", "entries": entries}), 0, "test")
    return Recorder(at=NOW, source="server", path="/run/1.sock", trace=trace)


def judged(world: World, **job: Any) -> Diagnosis:
    """What is concluded of it; fields go to the job."""
    snapshot = world.snapshot(**job)
    return diagnose(snapshot, snapshot.job(None))


def one_elsewhere(stack: Stack, others: Stack = BACKWARD, ranks: int = 3) -> Diagnosis:
    """The diagnosis of ranks that are all in one place, but for the last."""
    world = World()
    for _ in range(ranks - 1):
        world.add(others, FUTEX)
    world.add(stack, FUTEX)
    snapshot = world.snapshot()
    return diagnose(snapshot, snapshot.job(None), 30.0)


def hung(world: World) -> Verdict:
    """The first verdict on a job that hangs."""
    found = judged(world)
    assert found.state == "hung", found
    return found.verdicts[0]
