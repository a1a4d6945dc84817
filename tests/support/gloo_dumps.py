"""Real gloo jobs that hang in the ways their names say, with their flight-recorder dumps.

gloo_dumps.py DIRECTORY SCENARIO...

All jobs run at the same time, four processes each, forked from one that has imported torch. The
ranks of a job dump once all of them stand: each stays away, or its recorder shows an operation that
is not over. They hang on until stdin ends, in most jobs with a worker server each. Their processes
are told in DIRECTORY/SCENARIO/pid_RANK.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch._inductor  # torch imports it to write stacks: once here, not in every rank
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Callable

WORLD = 4
LIMIT_S = 1200.0
"""Seconds after which a rank gives up: whoever started it is gone by then."""
STANDS_S = 1.0
"""Seconds for which all ranks of a job stay where they are before they dump."""


class Rank:
    """One rank of one job."""

    def __init__(self, directory: Path, scenario: str, rank: int) -> None:
        self.directory, self.scenario, self.rank = directory / scenario, scenario, rank
        self.away = threading.Event()
        self.since: float | None = None
        """Since when this rank stays where it is; None while it does not."""

    def run(self) -> None:
        """Join the job, and hang."""
        self.directory.mkdir(parents=True, exist_ok=True)
        store = self.store()
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=WORLD)
        server = self.serve(store)
        (self.directory / f"pid_{self.rank}").write_text(str(os.getpid()))
        threading.Thread(target=self.dump, daemon=True).start()
        try:
            SCENARIOS[self.scenario](self)
        except RuntimeError:
            # Others have left already, and with them the connection.
            if not self.all_dumped():
                raise
        self.stay_away()
        del server

    def store(self) -> dist.Store:
        """Where the ranks of the job meet."""
        if self.scenario != "debug":
            return dist.FileStore(str(self.directory / "store"), WORLD)
        place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        return dist.TCPStore(*place, WORLD, is_master=self.rank == 0)

    def serve(self, store: dist.Store) -> object:
        """Start what the recorder can be asked by."""
        if self.scenario == "release":
            return None
        if self.scenario != "debug":
            return c10d._WorkerServer(str(self.directory / f"{self.rank}.sock"), -1)
        # What torch.distributed.debug.start_debug_server does in every rank.
        server = c10d._WorkerServer("0.0.0.0", 0)
        if self.rank != 3:
            url = f"http://{socket.gethostname()}:{server.port}"
            dist.PrefixStore("debug_server", store).set(f"rank{self.rank}", url)
        return server

    def stay_away(self) -> None:
        """Be anywhere but in communication."""
        self.away.set()
        time.sleep(LIMIT_S)
        os._exit(1)

    def dump(self) -> None:
        """Write the dumps."""
        try:
            self.write()
        except BaseException:
            traceback.print_exc()
            os._exit(4)

    def write(self) -> None:
        """Write both forms once this rank hangs."""
        self.wait(self.all_stand)
        stacks = self.scenario == "shift"
        data = c10d._dump_fr_trace(True, stacks, False)
        (self.directory / f"json_{self.rank}").write_bytes(c10d._dump_fr_trace_json(True, False))
        put(self.directory / f"rank_{self.rank}", data)

    def all_dumped(self) -> bool:
        """Whether the dumps of all ranks are there."""
        return len(list(self.directory.glob("rank_*"))) == WORLD

    def all_stand(self) -> bool:
        """Whether no rank of the job gets on: a rank may also wait for one that is only late."""
        told = self.directory / f"stands_{self.rank}"
        if not (self.away.is_set() or self.waits()):
            self.since = None
            told.unlink(missing_ok=True)
            return False
        if self.since is None:
            self.since = time.monotonic()
            put(told, str(self.since).encode())
        since = []
        for path in self.directory.glob("stands_*"):
            with contextlib.suppress(FileNotFoundError):  # it has just gone on
                since.append(float(path.read_text()))
        return len(since) == WORLD and time.monotonic() - max(since) > STANDS_S

    def waits(self) -> bool:
        """Whether an operation is under way."""
        entries = json.loads(c10d._dump_fr_trace_json(True, False)).get("entries", [])
        time.sleep(0.3)
        again = json.loads(c10d._dump_fr_trace_json(True, False)).get("entries", [])
        return bool(entries) and not entries[-1]["retired"] and again == entries

    def wait(self, until: Callable[[], bool]) -> None:
        """Wait for a condition."""
        deadline = time.monotonic() + LIMIT_S
        while not until():
            if time.monotonic() > deadline:
                os._exit(2)
            time.sleep(0.05)


def put(path: Path, data: bytes) -> None:
    """Write a file that is whole as soon as it is there."""
    part = path.with_name(f".part-{path.name}")
    part.write_bytes(data)
    part.rename(path)


def reduce(times: int = 1) -> None:
    for _ in range(times):
        dist.all_reduce(torch.ones(8))


def skip(rank: Rank) -> None:
    """Rank 2 stays away from the third all_reduce."""
    reduce(2)
    if rank.rank == 2:
        rank.stay_away()
    reduce()


def mismatch(rank: Rank) -> None:
    """Rank 1 broadcasts where the others all_reduce."""
    reduce(2)
    if rank.rank == 1:
        dist.broadcast(torch.ones(8), 1)
    reduce()


def crossed(rank: Rank) -> None:
    """Two groups of all ranks, used in another order by half of them."""
    groups = [dist.new_group(list(range(WORLD))), dist.new_group(list(range(WORLD)))]
    for group in groups:
        dist.all_reduce(torch.ones(8), group=group)
    for group in groups if rank.rank < 2 else reversed(groups):
        dist.all_reduce(torch.ones(8), group=group)


def subset(rank: Rank) -> None:
    """Rank 3 stays away from its half of the ranks; the other half waits for that half."""
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    reduce()
    if rank.rank == 3:
        rank.stay_away()
    dist.all_reduce(torch.ones(8), group=halves[rank.rank // 2])
    reduce()


def ddp(rank: Rank) -> None:
    """Rank 1 does not come to the backward pass."""
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    loss = model(torch.ones(2, 8)).sum()
    if rank.rank == 1:
        rank.stay_away()
    loss.backward()


def shift(rank: Rank) -> None:
    """Rank 2 leaves out a step in which nothing differs but the line; it shows at the end."""
    for step in range(4):
        dist.all_reduce(torch.ones(8))
        if rank.rank != 2 or step != 1:
            dist.all_reduce(torch.zeros(8))
    dist.barrier()
    dist.all_reduce(torch.ones(4))


def gil(rank: Rank) -> None:
    """Rank 1 holds the GIL, asleep in C."""
    reduce(2)
    if rank.rank == 1:
        rank.away.set()
        rank.wait((rank.directory / "rank_1").exists)
        ctypes.PyDLL(None).sleep(int(LIMIT_S))
    reduce()


def release(rank: Rank) -> None:
    """Rank 1 stays away until it is told to come; then all write down what they have got."""
    reduce(2)
    if rank.rank == 1:
        rank.away.set()
        rank.wait((rank.directory / "go").exists)
    numbers = torch.full((8,), float(rank.rank + 1))
    dist.all_reduce(numbers)
    dist.barrier()
    put(rank.directory / f"result_{rank.rank}", str(numbers.tolist()).encode())


def debug(rank: Rank) -> None:
    """As `skip`, in ranks with torch's debug server; rank 3 has not published its own."""
    skip(rank)


SCENARIOS: dict[str, Callable[[Rank], None]] = {
    "skip": skip,
    "mismatch": mismatch,
    "crossed": crossed,
    "subset": subset,
    "ddp": ddp,
    "shift": shift,
    "gil": gil,
    "release": release,
    "debug": debug,
}


def main() -> None:
    """Fork all ranks of all jobs and wait for them."""
    if not hasattr(c10d, "_dump_fr_trace"):
        sys.exit("this torch has no flight recorder for gloo")
    directory = Path(sys.argv[1])
    torch.set_num_threads(1)
    children = []
    for scenario in sys.argv[2:]:
        for rank in range(WORLD):
            child = os.fork()
            if child == 0:
                signal.alarm(int(2 * LIMIT_S))
                try:
                    Rank(directory, scenario, rank).run()
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(3)
            children.append(child)
    status = 0
    while not select.select([sys.stdin], [], [], 0.1)[0] and not status:
        child, how = os.waitpid(-1, os.WNOHANG)
        if child:
            children.remove(child)
            status = os.waitstatus_to_exitcode(how) or 5
    for child in children:
        os.kill(child, signal.SIGKILL)
    sys.exit(status)


if __name__ == "__main__":
    main()
