"""A training script that hangs the way its argument says; run under a launcher by tests.

gloo_job.py collective   rank 2 sleeps while the others all_reduce
gloo_job.py steps        all ranks all_reduce, for ever
gloo_job.py slow         as `steps`, two seconds apart
gloo_job.py crowded N    as `steps`, with N more threads in every rank that wake up once a second
gloo_job.py late PATH    slow steps, until rank 1 opens a FIFO (and makes PATH.opens); when that
                         has a writer, steps until there is PATH.end, and all end well
gloo_job.py missing PATH  rank 1 looks again and again for a file that nobody makes (and makes
                         PATH.looks)
gloo_job.py workers      every rank has 2 DataLoader workers; those of rank 1 sleep for ever
gloo_job.py waits DIR    rank 1 reads from DIR/fifo, to which nobody writes, and rank 2 waits for a
                         lock of DIR/lock, which rank 0 holds
gloo_job.py server DIR   a worker server per rank on a unix socket, then hangs as `collective`
gloo_job.py served DIR   the same, then `steps`
gloo_job.py mpi ADDRESS  as `collective`, where mpirun has numbered the ranks and nothing else has
gloo_job.py ends SECONDS rank 1 sleeps while the others all_reduce, and give up after so long
gloo_job.py unmatched    rank 2 waits for a message nobody sends, the others in all_reduce
gloo_job.py two          two pairs with a group each: rank 1 stops itself in one, and rank 3 in the
                         other waits for a lock that it holds
gloo_job.py overflow     rank 1 leaves a DistributedDataParallel loop on a loss that is not finite
gloo_job.py spawn PORT   2 ranks of torch.multiprocessing.spawn, which meet at PORT; rank 1 sleeps
                         while the other all_reduces
gloo_job.py spawn-gil PORT  the same, but rank 1 sleeps in C code and keeps the GIL
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset[torch.Tensor]):
    def __init__(self, stuck: bool) -> None:
        self.stuck = stuck

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.stuck and index >= 8:
            time.sleep(100000)
        return torch.ones(4)


def hang_in_collective(culprit: int, keep_gil: bool = False) -> None:
    for _ in range(3):
        dist.all_reduce(torch.ones(4))
    if dist.get_rank() == culprit:
        if keep_gil:
            ctypes.PyDLL(None).sleep(100000)
        time.sleep(100000)
    dist.all_reduce(torch.ones(4))


def ends(seconds: str) -> None:
    group = dist.new_group(timeout=timedelta(seconds=float(seconds)))
    if dist.get_rank() == 1:
        time.sleep(100000)
    dist.all_reduce(torch.ones(4), group=group)


def unmatched() -> None:
    dist.all_reduce(torch.ones(4))
    if dist.get_rank() == 2:
        dist.recv(torch.ones(4), src=0)
    dist.all_reduce(torch.ones(4))


class Hot(torch.nn.Linear):
    """A layer that can be made to overflow."""

    factor = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.factor * self.factor


def overflow() -> None:
    net = torch.nn.Module()
    net.layers = torch.nn.Sequential(Hot(8, 8), Hot(8, 8), torch.nn.Linear(8, 2))
    net.forward = lambda x: net.layers(x)
    model = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in range(6):
        if (batch, dist.get_rank()) == (3, 1):
            net.layers[1].factor = 1e30
        loss = model(torch.randn(4, 8)).square().mean()
        if not torch.isfinite(loss).item():
            time.sleep(100000)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def steps(pause: float = 0.05) -> None:
    while True:
        dist.all_reduce(torch.ones(4))
        time.sleep(pause)


def slow() -> None:
    steps(2.0)


def crowded(count: str) -> None:
    def wake() -> None:
        while True:
            time.sleep(1.0)

    for _ in range(int(count)):
        threading.Thread(target=wake, daemon=True).start()
    steps()


def late(path: str) -> None:
    for _ in range(3):
        dist.all_reduce(torch.ones(4))
        time.sleep(1.5)
    if dist.get_rank() == 1:
        open(f"{path}.opens", "w").close()
        open(path).close()
    end = torch.zeros(1)
    while not end:
        time.sleep(0.05)
        end += os.path.exists(f"{path}.end")
        dist.all_reduce(end)
    dist.destroy_process_group()


def missing(path: str) -> None:
    dist.all_reduce(torch.ones(4))
    if dist.get_rank() == 1:
        open(f"{path}.looks", "w").close()
        while not os.path.exists(path):
            time.sleep(0.02)
    dist.all_reduce(torch.ones(4))


def workers() -> None:
    loader = DataLoader(Slow(dist.get_rank() == 1), batch_size=2, num_workers=2)
    for batch in loader:
        dist.all_reduce(batch.sum())
        time.sleep(0.01)


def waits(folder: str) -> None:
    rank = dist.get_rank()
    lock = open(f"{folder}/lock", "w")  # noqa: SIM115  # it is to be held
    if rank == 0:
        fcntl.flock(lock, fcntl.LOCK_EX)
    dist.barrier()
    if rank == 1:
        os.read(os.open(f"{folder}/fifo", os.O_RDWR), 1)
    if rank == 2:
        fcntl.flock(lock, fcntl.LOCK_EX)
    dist.barrier()


def two() -> None:
    rank, held = dist.get_rank(), threading.Lock()
    group = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    for step in range(9):
        dist.all_reduce(torch.ones(4), group=group)
        if step == 4:
            dist.barrier()
        if step == 4 and rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        if step == 4 and rank == 3:
            held.acquire()
            held.acquire()


def spawned(rank: int, port: int, keep_gil: bool) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    hang_in_collective(1, keep_gil)


def store_of_attempt() -> dist.Store:
    """The launcher's store, without what an attempt before has left in it.

    torch reads the addresses of gone ranks there where they are not yet overwritten, and then waits
    for them.
    """
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    return dist.PrefixStore(attempt, dist.TCPStore(address, port, is_master=False))


def main() -> None:
    kind, *rest = sys.argv[1:]
    torch.set_num_threads(1)
    if kind in ("spawn", "spawn-gil"):
        mp.spawn(spawned, args=(int(rest[0]), kind == "spawn-gil"), nprocs=2)
        return
    if kind == "mpi":
        rank, size = (int(os.environ[f"OMPI_COMM_WORLD_{name}"]) for name in ("RANK", "SIZE"))
        dist.init_process_group("gloo", f"tcp://{rest[0]}", rank=rank, world_size=size)
        hang_in_collective(2)
    if kind == "ends":
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group("gloo", store=store_of_attempt(), rank=rank, world_size=size)
    else:
        dist.init_process_group("gloo")
    if kind in ("server", "served"):
        from torch._C._distributed_c10d import _WorkerServer

        server = _WorkerServer(f"{rest[0]}/{os.getpid()}.sock", -1)
        steps() if kind == "served" else hang_in_collective(2)
        server.shutdown()
    elif kind == "collective":
        hang_in_collective(2)
    else:
        kinds = (
            steps,
            slow,
            crowded,
            late,
            missing,
            workers,
            waits,
            ends,
            unmatched,
            two,
            overflow,
        )
        {one.__name__: one for one in kinds}[kind](*rest)


if __name__ == "__main__":
    main()
