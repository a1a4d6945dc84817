"""Each rank keeps a ledger of the samples that it has seen in SQLite, for exact resumption."""

import hashlib
import logging
import os
import sqlite3
import time
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

log = logging.getLogger("ledger")
SCHEMA = """
CREATE TABLE IF NOT EXISTS seen (sample TEXT PRIMARY KEY, step INTEGER, digest BLOB);
CREATE INDEX IF NOT EXISTS by_step ON seen (step);
"""


class Ledger:
    """Rows are committed once a step; a commit that fails is tried again, as locks pass."""

    def __init__(self, path, wait_s=2.0):
        self.connection = sqlite3.connect(path, timeout=30)
        self.connection.executescript(SCHEMA)
        self.wait_s = wait_s

    def _once(self, rows):
        with self.connection:
            self.connection.executemany("INSERT OR REPLACE INTO seen VALUES (?, ?, ?)", rows)

    def record(self, step, samples):
        rows = [(s, step, hashlib.sha512(s.encode()).digest() * 8) for s in samples]
        attempt = 0
        while True:
            try:
                return self._once(rows)
            except sqlite3.OperationalError as error:
                attempt += 1
                level = logging.WARNING if attempt == 1 else logging.DEBUG
                log.log(level, "commit of step %d failed, trying again: %s", step, error)
                time.sleep(self.wait_s)

    def count(self):
        with closing(self.connection.execute("SELECT count(*) FROM seen")) as cursor:
            return cursor.fetchone()[0]


class Stream:
    """Names of samples, in the order in which a rank sees them."""

    def __init__(self, rank, batch):
        self.rank, self.batch, self.at = rank, batch, 0

    def __next__(self):
        names = [f"r{self.rank}/{self.at + n:09d}" for n in range(self.batch)]
        self.at += self.batch
        return names, torch.randn(self.batch, 32)


def main():
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank, world = dist.get_rank(), dist.get_world_size()
    # Rank 1 runs where the scratch file system is a small one.
    folder = Path(os.environ["PLACE"] if rank == 1 else os.environ["OUT_DIR"])
    ledger = Ledger(folder / f"ledger-{rank}.db")
    stream = Stream(rank, 64)
    model = nn.Sequential(nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(10_000):
        names, inputs = next(stream)
        loss = (model(inputs) - inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world
        optimizer.step()
        ledger.record(step, names)
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f} seen {ledger.count()}", flush=True)
        time.sleep(0.05)


if __name__ == "__main__":
    main()
