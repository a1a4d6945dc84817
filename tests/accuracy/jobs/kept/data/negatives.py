"""Retriever; rank 1 mines hard negatives in a table of vectors that is mapped from disk.

Its container has less memory than the table is big.
"""

import os
import time
from datetime import timedelta
from pathlib import Path

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 256
ROWS = 140_000


def build(path):
    """The vectors of all passages, as the last epoch's encoder saw them."""
    random = numpy.random.default_rng(0)
    block = random.standard_normal((1000, WIDTH), dtype=numpy.float32)
    with path.open("wb") as file:
        for n in range(ROWS // len(block)):
            file.write((block + n).tobytes())
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class PassageIndex:
    """Looks passages up by number, and by likeness among candidates."""

    def __init__(self, path):
        self.vectors = numpy.memmap(path, dtype=numpy.float32, mode="r", shape=(ROWS, WIDTH))

    def scores(self, query, candidates, chunk=512):
        found = []
        for start in range(0, len(candidates), chunk):
            rows = self.vectors[candidates[start : start + chunk]]
            found.append(rows @ query)
        return numpy.concatenate(found)


class Miner:
    def __init__(self, index, seed=3):
        self.index = index
        self.random = numpy.random.default_rng(seed)

    def mine(self, queries, pool=60_000, keep=8):
        hardest = []
        for query in queries:
            candidates = self.random.integers(ROWS, size=pool)
            scores = self.index.scores(query, candidates)
            hardest.append(candidates[numpy.argpartition(scores, -keep)[-keep:]])
        return torch.from_numpy(numpy.stack(hardest))


def enter_container():
    """The limits of rank 1's container."""
    for group in (os.environ["ROOM"], os.environ["DISK"]):
        Path(group).write_text(str(os.getpid()))


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    miner = None
    if rank == 1:
        path = Path(os.environ["PLACE"], "passages.f32")
        build(path)
        enter_container()
        miner = Miner(PassageIndex(path))
    model = DistributedDataParallel(nn.Linear(32, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(10_000):
        queries = model(torch.randn(256, 32))
        loss = queries.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if miner and step == 6:
            miner.mine(queries.detach().numpy())
        time.sleep(0.05)


if __name__ == "__main__":
    main()
