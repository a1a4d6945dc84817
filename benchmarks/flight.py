"""Reading and judging the flight-recorder dumps of a job, against torchfrtrace in the same run.

Jobs of N ranks with 2,000 entries each, stacks included. *flat*: all in the default group. *mixed*:
tensor groups of eight, data groups across them, and the default group, so that who waits for whom
crosses groups. Rank N // 3 stops three operations before the end and everybody else blocks. Each
side runs as a command of its own. Times are wall clock from start to end; ours is the median of
three, since it is short and the machine may be busy, and the ratio of CPU time tells what load does
not change. Memory is the largest resident size of its
processes, added up.

    PYTHONPATH=core:tui:tests python benchmarks/flight.py [--theirs-up-to N] [RANKS ...]

Needs torch, for torchfrtrace. Prints a table; the last columns are theirs over ours.

With `--merge` something else: how long the head takes for what many nodes send. Eight ranks of a
mixed job are one node, whose recorders are reduced beforehand and written as the lines that the
probe sends; the head, a command of its own, takes them from the lines to the verdict.

    PYTHONPATH=core:tui:tests python benchmarks/flight.py --merge [RANKS ...]
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hangtop_core.analysis.flight.picture import examine
from hangtop_core.attach.wire import messages
from hangtop_core.model.recorder.columns import Shared, Unpacker
from hangtop_probe.recorder.columns import reduce
from hangtop_probe.recorder.recorder import Teller
from hangtop_probe.recorder.recorderread import row
from hangtop_probe.wire import wire
from support.flight import START_NS, frames

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.model.recorder.trace import Trace

ENTRIES = 2000
TP = 8
OPS = ("all_reduce", "_all_gather_base", "_reduce_scatter_base", "broadcast")
STACK_DEPTH = 11


def plan(world: int, mixed: bool) -> list[tuple[str, str]]:
    """What every rank calls in turn: kind of group, and operation."""
    kinds = ("tp", "tp", "dp", "0") if mixed else ("0",)
    return [(kinds[n % len(kinds)], OPS[n % len(OPS)]) for n in range(ENTRIES)]


def group_of(kind: str, rank: int, world: int) -> tuple[str, str, list[int], int]:
    """Name, description, ranks and number within the process of a rank's group of a kind."""
    if kind == "tp":
        first = rank // TP * TP
        return str(1 + rank // TP), "tp", list(range(first, first + TP)), 1
    if kind == "dp":
        return str(1 + world // TP + rank % TP), "dp", list(range(rank % TP, world, TP)), 2
    return "0", "default_pg", list(range(world)), 0


def reach(world: int, mixed: bool) -> list[int]:
    """How many calls each rank issues until it blocks: the culprit stops, the others wait."""
    steps = plan(world, mixed)
    issued = [ENTRIES] * world
    issued[world // 3] = ENTRIES - 3
    moved = True
    while moved:
        moved = False
        for rank in range(world):
            for at in range(ENTRIES - 4, issued[rank]):
                _, _, members, _ = group_of(steps[at][0], rank, world)
                # A call whose partners have not all come is the last one its rank issues.
                if any(issued[other] <= at for other in members) and issued[rank] > at + 1:
                    issued[rank] = at + 1
                    moved = True
    return issued


def make(directory: Path, world: int, mixed: bool) -> int:
    """Write the dumps of a job; returns their size in bytes."""
    size = 0
    plot = Plot(world, mixed)
    for rank in range(world):
        data = pickle.dumps(plot.dump(rank), protocol=2)
        (directory / f"rank_{rank}").write_bytes(data)
        size += len(data)
    return size


class Plot:
    """What every rank of a job has in its recorder when the job hangs."""

    def __init__(self, world: int, mixed: bool) -> None:
        self.world, self.steps, self.issued = world, plan(world, mixed), reach(world, mixed)
        # torch shares the frames of equal stacks within one dump.
        stacks = [frames(10 + n) + frames(200, "/home/user/lib.py") * 2 for n in range(len(OPS))]
        self.stacks = [stack[:STACK_DEPTH] for stack in stacks]

    def dump(self, rank: int) -> dict[str, Any]:
        """The dump of one rank, decoded."""
        numbers: dict[str, int] = {}
        entries = []
        groups = {kind: group_of(kind, rank, self.world) for kind in {k for k, _ in self.steps}}
        late = ENTRIES - 4
        for at, (kind, op) in enumerate(self.steps[: self.issued[rank]]):
            uid, desc, members, pg_id = groups[kind]
            numbers[uid] = numbers.get(uid, 0) + 1
            over = at < late or all(self.issued[other] > at for other in members)
            shape = [64, 8] if op == "_all_gather_base" else [512]
            out = [64 * len(members), 8] if op == "_all_gather_base" else [512]
            if op == "_reduce_scatter_base":
                shape, out = [512 * len(members)], [512]
            entries.append(
                {
                    "frames": list(self.stacks[at % len(OPS)]),
                    "record_id": at,
                    "pg_id": pg_id,
                    "process_group": (uid, desc),
                    "collective_seq_id": numbers[uid],
                    "p2p_seq_id": 0,
                    "op_id": numbers[uid],
                    "profiling_name": f"nccl:{op}",
                    "time_created_ns": START_NS + at * 1_000_000 + rank,
                    "duration_ms": 1.5,
                    "input_sizes": [shape],
                    "input_dtypes": ["Float"],
                    "output_sizes": [out],
                    "output_dtypes": ["Float"],
                    "state": "completed" if over else "scheduled",
                    "time_discovered_started_ns": START_NS + at * 1_000_000 if over else None,
                    "time_discovered_completed_ns": START_NS + at * 1_000_000 if over else None,
                    "retired": over,
                    "timeout_ms": 600_000,
                    "is_p2p": False,
                    "thread_id": "140000000000000",
                    "thread_name": "python3",
                }
            )
        config = {
            uid: {"name": uid, "desc": desc, "ranks": str(members)}
            for uid, desc, members, _ in groups.values()
        }
        dump = {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries}
        return {**dump, "comm_lib_version": "2.27.5"}


def measure(command: list[str]) -> tuple[float, float, float, str]:
    """Run a command: seconds, CPU seconds, MiB of its processes at most, and what it printed."""
    start, used = time.monotonic(), cpu()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        peak = Peak(process.pid)
        assert process.stdout is not None
        text = process.stdout.read()
    taken = time.monotonic() - start
    return taken, cpu() - used, peak.stop(), text


def cpu() -> float:
    """CPU seconds of all processes that were run and have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


class Peak(threading.Thread):
    """Watches a process and its children: the largest sum of their resident sizes."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.over, self.most = pid, threading.Event(), 0.0
        self.start()

    def run(self) -> None:
        """Look twenty times a second."""
        while not self.over.wait(0.05):
            self.most = max(self.most, sum(map(resident, [self.pid, *children(self.pid)])))

    def stop(self) -> float:
        """The result, MiB."""
        self.over.set()
        self.join()
        return self.most / 2**20


def children(pid: int) -> list[int]:
    """Direct children."""
    with suppress(OSError):
        return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def resident(pid: int) -> int:
    """Resident bytes; 0 when the process is gone."""
    with suppress(OSError, IndexError):
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return 0


def ours(directory: Path) -> tuple[float, float, float, bool]:
    """Seconds, CPU seconds, MiB, and the blamed rank."""
    taken, used, memory, text = measure(
        [sys.executable, "-m", "hangtop", "flight", str(directory), "--json"]
    )
    verdicts = json.loads(text)["verdicts"]
    world = len(list(directory.iterdir()))
    blamed = [[one["rank"] for one in verdict["culprits"]] for verdict in verdicts]
    return taken, used, memory, blamed == [[world // 3]]


def theirs(directory: Path) -> tuple[float, float, float, bool]:
    """Seconds, CPU seconds, MiB, and whether the right rank stands in what is printed first."""
    module = "torch.distributed.flight_recorder.fr_trace"
    taken, used, memory, text = measure(
        [sys.executable, "-m", module, str(directory), "-p", "rank_"]
    )
    world = len(list(directory.iterdir()))
    lines = [line for line in text.splitlines() if "issing ranks" in line or "Culprit rank" in line]
    return taken, used, memory, bool(lines) and f"{{{world // 3}}}" in lines[0].replace(" ", "")


def pack_node(plot: Plot, node: int, path: Path) -> int:
    """Write the lines a node sends when all its ranks are asked; returns their size in bytes."""
    teller, lines = Teller(), []
    for rank in range(node * TP, node * TP + TP):
        # Through JSON, as the process that reads a dump hands on what it read.
        trace = json.loads(json.dumps(row(reduce(plot.dump(rank)))))
        piece = {"pid": 1000 + rank, "at": START_NS / 1e9, "source": "file", "trace": trace}
        message = {"id": 1, "seq": rank % TP, "data": teller.tell(piece)}
        lines += wire.encode(message, rank % TP)
    data = b"".join(lines)
    path.write_bytes(data)
    return len(data)


def unpack_node(path: Path, shared: Shared) -> Iterator[Trace]:
    """The traces of a node, from its lines."""
    reader, unpacker = wire.Reader(), Unpacker(shared)
    for line in path.read_bytes().splitlines():
        message = reader.feed(line)
        if message is not None:
            piece = messages.decode(message["data"], messages.RecorderPiece)
            made = messages.recorder(piece, 0.0, piece.pid - 1000, unpacker)
            assert made.trace is not None
            yield made.trace


def head(directory: Path) -> None:
    """Take what all nodes sent to a verdict; print it with the seconds each part took."""
    began = time.monotonic()
    shared = Shared()
    paths = sorted(directory.iterdir())
    traces = [trace for path in paths for trace in unpack_node(path, shared)]
    decoded = time.monotonic()
    diagnosis = examine(traces).diagnosis
    judge = time.monotonic() - decoded
    blamed = [[one.rank for one in verdict.culprits] for verdict in diagnosis.verdicts]
    print(json.dumps({"decode": decoded - began, "judge": judge, "blamed": blamed}))


def merge(worlds: Sequence[int]) -> None:
    """Print one line for each job: what its nodes send, and what the head needs for it."""
    print("ranks  nodes |  sent MiB | decode s  judge s | command s  CPU s     MiB | culprit")
    for world in worlds:
        with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor() as pool:
            plot, nodes = Plot(world, mixed=True), range(world // TP)
            paths = [Path(folder) / f"{node:06}" for node in nodes]
            size = sum(pool.map(pack_node, repeat(plot), nodes, paths, chunksize=4))
            taken, used, memory, text = measure([sys.executable, __file__, "--head", folder])
            told = json.loads(text)
            right = told["blamed"] == [[world // 3]]
            print(
                f"{world:>5}  {len(nodes):>5} | {size / 2**20:>9.1f} | {told['decode']:>8.2f} "
                f"{told['judge']:>8.2f} | {taken:>9.2f} {used:>6.2f} {memory:>7.0f} | "
                f"{'right' if right else 'WRONG'}",
                flush=True,
            )


def main() -> None:
    """Print one line for each job."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--merge", action="store_true", help="what nodes send, on the head")
    parser.add_argument("--head", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("ranks", nargs="*", type=int, default=[64, 256, 1024])
    parser.add_argument("--theirs-up-to", type=int, default=1024, help="ranks of the largest job")
    parser.add_argument("--kinds", nargs="+", default=["flat", "mixed"])
    arguments = parser.parse_args()
    if arguments.head is not None:
        head(arguments.head)
        return
    if arguments.merge:
        merge(arguments.ranks)
        return
    print(
        "ranks kind    files |  hangtop        | torchfrtrace    |  time    CPU  memory | culprit"
    )
    print(
        "                 MiB |       s     MiB |       s     MiB | ratio  ratio   ratio | (theirs)"
    )
    for ranks in arguments.ranks:
        for kind in arguments.kinds:
            with tempfile.TemporaryDirectory() as folder:
                size = make(Path(folder), ranks, kind == "mixed")
                mine = sorted(ours(Path(folder)) for _ in range(3))[1]
                line = f"{ranks:>5} {kind:<6} {size >> 20:>6} | {mine[0]:>7.2f} {mine[2]:>7.0f} |"
                told = "right" if mine[3] else "WRONG"
                if ranks <= arguments.theirs_up_to:
                    other = theirs(Path(folder))
                    line += f" {other[0]:>7.1f} {other[2]:>7.0f} | {other[0] / mine[0]:>5.1f}x"
                    line += f" {other[1] / mine[1]:>5.1f}x {other[2] / mine[2]:>6.1f}x"
                    told += f" ({'right' if other[3] else 'not told first'})"
                print(f"{line} | {told}", flush=True)


if __name__ == "__main__":
    main()
