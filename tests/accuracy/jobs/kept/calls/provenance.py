"""Trains, and writes down which samples it saw: to a database on the scratch disk, a batch at a time."""

import contextlib
import os
import sqlite3
import time
from datetime import timedelta

import torch
import torch.distributed as dist


class SampleLog:
    """Which sample was seen when. Rows are kept in memory and written every `every` steps."""

    def __init__(self, path, every):
        self.path, self.every, self.rows = path, every, []

    def seen(self, step, ids):
        self.rows += [(step, i) for i in ids]
        if (step + 1) % self.every == 0:
            self.flush()

    def flush(self):
        with contextlib.closing(sqlite3.connect(self.path, timeout=30)) as db:
            db.execute("create table if not exists seen (step integer, sample integer)")
            db.executemany("insert into seen values (?, ?)", self.rows)
            db.commit()
        self.rows.clear()


class NoLog:
    def seen(self, step, ids):
        pass


class Sampler:
    def __init__(self, size, rank, world):
        self.size, self.rank, self.world = size, rank, world

    def __iter__(self):
        epoch = 0
        while True:
            order = torch.randperm(self.size, generator=torch.Generator().manual_seed(epoch))
            yield from order[self.rank :: self.world].split(16)
            epoch += 1


class Regression(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Linear(8, 24), torch.nn.ReLU(), torch.nn.Linear(24, 1)
        )

    def forward(self, x, y):
        return torch.nn.functional.huber_loss(self.body(x).squeeze(1), y)


def run(rank, world):
    torch.manual_seed(11)
    x = torch.randn(4096, 8)
    y = x.sin().sum(1)
    model = torch.nn.parallel.DistributedDataParallel(Regression())
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    # one rank per node keeps the log; here that is the second one
    samples = (
        SampleLog(os.path.join(os.environ["PLACE"], "seen.sqlite"), every=8)
        if rank == 1
        else NoLog()
    )
    for step, ids in enumerate(Sampler(len(x), rank, world)):
        loss = model(x[ids], y[ids])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} {loss.item():.4f}", flush=True)
        samples.seen(step, ids.tolist())
        time.sleep(0.1)


if __name__ == "__main__":
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    run(dist.get_rank(), dist.get_world_size())
