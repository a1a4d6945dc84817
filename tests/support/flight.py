"""Flight-recorder dumps made by hand: small jobs written down call by call, or run in miniature.

They have the shape of those that torch writes (see tests/real/test_flight.py, which reads real
ones); only what is in them is made up.
"""

from __future__ import annotations

import json
import pickle
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from hangtop_core.analysis.flight.verdicts import conclude
from hangtop_core.analysis.flight.waits import Waits
from hangtop_core.analysis.flight.world import World
from hangtop_core.model.recorder.columns import trace_of
from hangtop_probe.recorder.columns import reduce

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from hangtop_core.diagnosis import Verdict
    from hangtop_core.model.recorder.trace import Trace

START_NS = 1_790_000_000_000_000_000
Dump = dict[str, Any]


def frames(line: int, file: str = "/home/user/train.py") -> list[dict[str, Any]]:
    """A stack as torch records it, innermost first."""
    library = "/usr/lib/python3.11/site-packages/torch/distributed"
    return [
        {"name": "all_reduce", "filename": f"{library}/distributed_c10d.py", "line": 2810},
        {"name": "wrapper", "filename": f"{library}/c10d_logger.py", "line": 83},
        {"name": "step", "filename": file, "line": line},
        {"name": "<module>", "filename": file, "line": 200},
    ]


class Job:
    """A job whose ranks' recorders are written call by call."""

    def __init__(
        self,
        world: int,
        groups: Mapping[str, tuple[str, Sequence[int]]] | None = None,
        backend: str = "nccl",
        version: str = "2.10",
        with_frames: bool = True,
    ) -> None:
        self.groups = {"0": ("default_pg", tuple(range(world))), **(groups or {})}
        self.backend, self.version, self.with_frames = backend, version, with_frames
        self.entries: dict[int, list[Dump]] = {rank: [] for rank in range(world)}
        self.numbers: dict[tuple[int, str, bool], int] = {}
        self.places = {uid: place for place, uid in enumerate(self.groups)}
        self.clock = START_NS

    def call(
        self,
        op: str,
        ranks: Iterable[int] | None = None,
        group: str = "0",
        done: bool = True,
        sizes: Sequence[Sequence[int]] = ((8,),),
        dtype: str = "Float",
        line: int = 10,
        peer: int | None = None,
        state: str | None = None,
    ) -> Job:
        """Let some ranks (all of the group by default) issue an operation."""
        for rank in self.groups[group][1] if ranks is None else ranks:
            self._add(rank, op, group, done, sizes, dtype, line, peer, state)
        self.clock += 1_000_000
        return self

    def _add(
        self,
        rank: int,
        op: str,
        group: str,
        done: bool,
        sizes: Sequence[Sequence[int]],
        dtype: str,
        line: int,
        peer: int | None,
        state: str | None,
    ) -> None:
        members = self.groups[group][1]
        key = (rank, group, peer is not None)
        self.numbers[key] = number = self.numbers.get(key, 0) + 1
        name = f"{self.backend}:{op}"
        if peer is not None:
            arrow = "->" if op == "send" else "<-"
            name += f" {members.index(rank)}{arrow}{members.index(peer)}"
        stateful = self.backend == "nccl"
        told = state or ("completed" if done and stateful else "scheduled")
        shape = [list(size) for size in sizes]
        entry = {
            "frames": frames(line),
            "record_id": len(self.entries[rank]),
            "pg_id": self.places[group],
            "process_group": (group, self.groups[group][0]),
            "collective_seq_id": number if peer is None else 0,
            "p2p_seq_id": number if peer is not None else 0,
            "op_id": number,
            "profiling_name": name,
            "time_created_ns": self.clock + rank,
            "input_sizes": shape,
            "output_sizes": shape,
            "input_dtypes": [dtype],
            "output_dtypes": [dtype],
            "state": told,
            "time_discovered_started_ns": None,
            "time_discovered_completed_ns": None,
            "retired": done,
            "timeout_ms": 600_000,
            "is_p2p": peer is not None,
            "thread_name": "python3",
            "thread_id": "140000000000000",
        }
        if not self.with_frames:
            del entry["frames"]
        self.entries[rank].append(entry)

    def dump(self, rank: int, last: int | None = None, only_active: bool = False) -> Dump:
        """What torch would write for a rank; `last`: so many entries are left in its ring."""
        entries = self.entries[rank]
        status = {}
        by_group: dict[str, list[Dump]] = defaultdict(list)
        for entry in entries:
            by_group[entry["process_group"][0]].append(entry)
        for number, (uid, (_, members)) in enumerate(self.groups.items()):
            own = by_group[uid]
            if rank in members and own:
                status[str(number)] = {
                    "last_enqueued_collective": len(own),
                    "last_started_collective": -1,
                    "last_completed_collective": sum(bool(e["retired"]) for e in own),
                }
        if only_active:
            entries = [e for e in entries if e["state"] != "completed"]
        config = {
            uid: {"name": uid, "desc": desc, "ranks": str(list(members))}
            for uid, (desc, members) in self.groups.items()
            if rank in members
        }
        if self.backend == "gloo":
            # torch 2.13 registers all groups of gloo under one empty name.
            config = {"": {"name": "", "desc": "", "ranks": "[]"}}
        return {
            "version": self.version,
            "pg_config": config,
            "comm_lib_version": "2.27.5",
            "pg_status": status,
            "entries": entries if last is None else entries[-last:],
        }

    def dumps(self, ranks: Iterable[int] | None = None) -> dict[int, Dump]:
        """The dumps of all ranks, or of some."""
        return {rank: self.dump(rank) for rank in (self.entries if ranks is None else ranks)}


@dataclass
class Step:
    """One line of a program: what a rank calls, with a number that only its partners share."""

    op: str
    group: str = "0"
    sizes: Sequence[Sequence[int]] = ((8,),)
    line: int = 10
    peer: int | None = None


@dataclass
class Run:
    """Programs of several ranks, run in miniature until nobody can go on.

    A rank that calls waits until all of the group have called alike as the same number, as gloo
    and blocking NCCL do; calls that differ never end.
    """

    job: Job
    programs: dict[int, list[Step]]

    def go(self, order: Sequence[int] | None = None) -> Job:
        """Run; `order` says who is asked first, again and again."""
        waiting: dict[int, Dump] = {}
        at = dict.fromkeys(self.programs, 0)
        turn = list(order or self.programs)
        moved = True
        while moved:
            moved = False
            for rank in turn:
                if rank in waiting or at[rank] >= len(self.programs[rank]):
                    continue
                step = self.programs[rank][at[rank]]
                self.job.call(
                    step.op, [rank], step.group, False, step.sizes, "Float", step.line, step.peer
                )
                waiting[rank] = self.job.entries[rank][-1]
                moved = True
            moved = self._match(waiting, at) or moved
        return self.job

    def _match(self, waiting: dict[int, Dump], at: dict[int, int]) -> bool:
        over: set[int] = set()
        for rank, entry in waiting.items():
            if rank in over:
                continue
            step = self.programs[rank][at[rank]]
            partners = self.job.groups[step.group][1] if step.peer is None else (rank, step.peer)
            if all(self._agree(rank, entry, other, waiting, at) for other in partners):
                over.update(partners)
        for rank in over:
            waiting[rank].update(retired=True)
            if self.job.backend == "nccl":
                waiting[rank].update(state="completed")
            del waiting[rank]
            at[rank] += 1
        return bool(over)

    def _agree(
        self, rank: int, entry: Dump, other: int, waiting: dict[int, Dump], at: dict[int, int]
    ) -> bool:
        if other not in waiting:
            return False
        here, there = self.programs[rank][at[rank]], self.programs[other][at[other]]
        if here.peer is not None and other != rank:
            return there.peer == rank and {here.op, there.op} == {"send", "recv"}
        same = (here.op, here.group, here.sizes) == (there.op, there.group, there.sizes)
        numbers = entry["collective_seq_id"] == waiting[other]["collective_seq_id"]
        return same and (numbers or here.peer is not None)


TENSOR = {"1": ("tp", [0, 1, 2, 3]), "2": ("dp", [0, 4]), "3": ("pp", [1, 5])}


def stalled() -> Job:
    """Six ranks: rank 2 stays away from its tensor group, and two groups wait behind that one."""
    job = Job(6, TENSOR)
    for _ in range(3):
        job.call("all_reduce", group="1").call("all_gather", group="2")
        job.call("send", [1], "3", peer=5).call("recv", [5], "3", peer=1)
    job.call("all_reduce", [0, 1, 3], "1", done=False)
    job.call("all_gather", [4], "2", done=False)
    return job.call("recv", [5], "3", peer=1, done=False)


def large(ranks: int, length: int, lacks: int) -> list[Trace]:
    """Traces of `ranks` in one group of `length` collectives; `lacks` stays away from the last.

    All share their columns: what is measured on them is time, not memory.
    """
    job = Job(2, with_frames=False)
    for _ in range(length - 1):
        job.call("all_reduce")
    job.call("all_reduce", [0], done=False)
    ahead, behind = (trace_of(reduce(job.dump(rank)), rank, "") for rank in (0, 1))
    members = str(list(range(ranks)))
    groups = tuple(replace(group, members=members) for group in ahead.groups)
    return [
        replace(behind if rank == lacks else ahead, rank=rank, groups=groups)
        for rank in range(ranks)
    ]


def traces(dumps: Mapping[int, Dump]) -> list[Trace]:
    """The dumps as analysis reads them."""
    return [trace_of(reduce(dump), rank, f"rank_{rank}") for rank, dump in dumps.items()]


def judge(dumps: Mapping[int, Dump]) -> list[Verdict]:
    """The verdicts on some dumps."""
    return conclude(Waits(World(traces(dumps))))


def blamed(verdict: Verdict) -> list[int]:
    """Ranks that a verdict blames."""
    return [one.rank for one in verdict.culprits if one.rank is not None]


def as_json(dump: Dump) -> bytes:
    """A dump in torch's JSON form: no frames, 0 for no time, counters as text, no empty list."""
    found = dict(dump)
    found["pg_status"] = {
        group: {name: str(value) for name, value in values.items()}
        for group, values in dump["pg_status"].items()
    }
    found["nccl_comm_state"] = {}
    found["entries"] = [
        {name: 0 if value is None else value for name, value in entry.items() if name != "frames"}
        for entry in dump["entries"]
    ]
    if not found["entries"]:
        del found["entries"]
    return json.dumps(found).encode()


def write(
    directory: Path,
    dumps: Mapping[int, Dump],
    prefix: str = "comm_lib_trace_rank_",
    form: str = "pickle",
) -> Path:
    """Write dumps as torch does, one file per rank."""
    directory.mkdir(parents=True, exist_ok=True)
    for rank, dump in dumps.items():
        data = pickle.dumps(dump, protocol=2) if form == "pickle" else as_json(dump)
        (directory / f"{prefix}{rank}").write_bytes(data)
    return directory
