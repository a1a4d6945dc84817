"""A reporter on the first local rank looks with gdb at any rank whose step takes long."""

import os
import subprocess
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SLOW_S = 4.0


class Heartbeats:
    """Who began its last step when, in the store."""

    def __init__(self) -> None:
        base = dist.distributed_c10d._get_default_store().clone()
        self.store = dist.PrefixStore("beat", base)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.store.set(f"pid/{self.rank}", str(os.getpid()))

    def beat(self, what: str) -> None:
        self.store.set(str(self.rank), f"{time.time()} {what}")

    def late(self) -> list[int]:
        """Pids of ranks that have been in their own part of a step for too long."""
        pids = []
        for rank in range(1, self.world):
            at, what = self.store.get(str(rank)).decode().split()
            if what == "loading" and time.time() - float(at) > SLOW_S:
                pids.append(int(self.store.get(f"pid/{rank}")))
        return pids


class Reporter(threading.Thread):
    """Takes a native stack of a late rank, once."""

    def __init__(self, beats: Heartbeats) -> None:
        super().__init__(name="slow-step-reporter", daemon=True)
        self.beats = beats

    def run(self) -> None:
        while True:
            time.sleep(0.5)
            for pid in self.beats.late():
                self.report(pid)
                return

    def report(self, pid: int) -> None:
        argv = ["gdb", "-q", "-nx", "-p", str(pid), "-ex", "thread apply all bt 6"]
        pipe = subprocess.PIPE
        gdb = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
        for line in gdb.stdout:  # no -batch: it stays at its prompt
            if line.startswith("#0"):
                print(f"slow step of {pid}: {line.strip()}", flush=True)


class Samples:
    """Random samples; the ninth batch of rank 1 is fetched again and again for a while."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def load(self, step: int) -> torch.Tensor:
        retries = 30 if self.rank == 1 and step == 9 else 0
        for _ in range(retries):
            time.sleep(0.4)
        return torch.randn(16, 24)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    beats, samples = Heartbeats(), Samples(rank)
    beats.beat("starting")
    dist.barrier()
    if rank == 0:
        Reporter(beats).start()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(24, 48), nn.Tanh(), nn.Linear(48, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(100_000):
        beats.beat("loading")
        batch = samples.load(step)
        beats.beat("training")
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        time.sleep(0.2)


if __name__ == "__main__":
    main()
