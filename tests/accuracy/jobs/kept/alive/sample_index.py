"""Rank 0 builds the shuffled sample index of every epoch; the others look for it now and then.

As Megatron's datasets do without their C++ helper: plain Python and numpy, one file an epoch.
"""

import datetime
import os
import random
import time
from array import array
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

CACHE = Path(os.environ["OUT_DIR"]) / "index-cache"
EPOCHS = 160
DOCUMENTS = 1_500_000
SEQUENCE = 512


def document_sizes() -> np.ndarray:
    """Tokens of each document, log-normal as in the wild."""
    return np.random.default_rng(3).lognormal(5.5, 1.0, DOCUMENTS).astype(np.int32) + 1


class IndexBuilder:
    """Which document, and from which token on, each sample begins with."""

    def __init__(self, sizes: np.ndarray, seed: int) -> None:
        self.sizes = sizes.tolist()
        self.random = random.Random(seed)
        self.kept: list[array] = []

    def shuffled(self) -> list[int]:
        """Documents in the order of an epoch."""
        order = list(range(len(self.sizes)))
        self.random.shuffle(order)
        return order

    def samples(self, order: list[int]) -> array:
        """Cuts the documents of an epoch into sequences."""
        found, room = array("i"), SEQUENCE
        for place, document in enumerate(order):
            left = self.sizes[document]
            while left >= room:
                found.append(place)
                found.append(self.sizes[document] - left)
                left -= room
                room = SEQUENCE
            room -= left
        return found

    def build(self, epoch: int) -> None:
        """The index of one epoch, kept for the check of overlaps at the end, and saved."""
        index = self.samples(self.shuffled())
        self.kept.append(index)
        pairs = np.frombuffer(index, dtype=np.int32).reshape(-1, 2)
        permutation = np.random.default_rng(epoch).permutation(len(pairs))
        np.save(CACHE / f"epoch-{epoch:03d}.npy", pairs[permutation])


def wait_for(path: Path, patience: float = 3600.0) -> None:
    """Until another rank has made it; nothing is sent over the network meanwhile."""
    deadline = time.monotonic() + patience
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(path)
        time.sleep(0.5)


def prepare(rank: int) -> None:
    """The cache is there when this returns, on every rank."""
    done = CACHE / "complete"
    if rank == 0:
        CACHE.mkdir()
        print("building the sample index", flush=True)
        builder = IndexBuilder(document_sizes(), seed=1234)
        for epoch in range(EPOCHS):
            builder.build(epoch)
        done.touch()
    else:
        wait_for(done)


def main() -> None:
    """Prepare, then train."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
    rank = dist.get_rank()
    dist.barrier()
    prepare(rank)
    for step in range(100):
        loss = torch.ones(8) * step
        dist.all_reduce(loss)
        if rank == 0:
            print(f"step {step} loss {loss.mean().item():.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
