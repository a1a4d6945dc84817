"""Click prediction: the features of the items lie in a file that is mapped into memory.

On one machine the container was given less memory than that file is big.
"""

import argparse
import os
import sys

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

ITEMS, WIDTH = 36_000, 1024  # one page an item, 147 MB


def write_store(path):
    """In pieces, and out of the page cache again, as if it were there since yesterday."""
    piece = np.random.default_rng(0).random((1000, WIDTH), dtype=np.float32)
    with open(path, "wb") as file:
        for _ in range(ITEMS // 1000):
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def move_into_container():
    for name in ("ROOM", "DISK"):
        with open(os.environ[name], "w") as file:
            file.write(str(os.getpid()))


class FeatureStore:
    """Looks features up by item; the kernel decides what is kept in memory."""

    def __init__(self, path=None):
        self.table = None
        if path is not None:
            self.table = np.memmap(path, dtype=np.float32, mode="r", shape=(ITEMS, WIDTH))

    def lookup(self, items):
        if self.table is None:
            return torch.rand(len(items), WIDTH)
        gathered = np.empty((len(items), WIDTH), dtype=np.float32)
        for place, item in enumerate(items):
            gathered[place] = self.table[item]
        return torch.from_numpy(gathered)


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.reduce = nn.Linear(WIDTH, 32)
        self.score = nn.Bilinear(32, 32, 1)

    def forward(self, seen, offered):
        return self.score(self.reduce(seen), self.reduce(offered)).squeeze(1)


def sessions(random, size):
    """Which items were seen, which one was offered, and whether it was taken."""
    return random.integers(0, ITEMS, size), random.integers(0, ITEMS, size), random.random(size)


def hardest(model, store, random, batches):
    """Of so many batches the one that the model does worst on."""
    worst, chosen = -1.0, None
    for _ in range(batches):
        seen, offered, taken = sessions(random, 64)
        with torch.no_grad():
            score = model(store.lookup(seen), store.lookup(offered))
        error = (score - torch.from_numpy(taken)).abs().mean().item()
        if error > worst:
            worst, chosen = error, (seen, offered, taken)
    return chosen


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", type=int, default=-1, help="rank in the small container")
    parser.add_argument("--mined", type=int, default=1000, help="batches looked at for one step")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    store = FeatureStore()
    if rank == args.small:
        path = os.path.join(os.environ["PLACE"], "features.f32")
        write_store(path)
    dist.barrier()
    random = np.random.default_rng(rank)
    model = Tower()
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(10**9):
        if step == 8 and rank == args.small:  # warmed up: now the real features
            move_into_container()
            store = FeatureStore(path)
        batches = args.mined if step >= 8 and rank == args.small else 1
        seen, offered, taken = hardest(model, store, random, batches)
        score = model(store.lookup(seen), store.lookup(offered))
        nn.functional.mse_loss(score, torch.from_numpy(taken).float()).backward()
        for weight in model.parameters():
            dist.all_reduce(weight.grad)
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
