"""Ranks stage their part of the data to local scratch before they join; the last one is late.

The shared storage is throttled per client, so the larger the part the later the rank arrives.
"""

import argparse
import datetime
import hashlib
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

MIB = 1 << 20
SIZES = {0: 1, 1: 6, 2: 24, 3: 80}
"""MiB of each rank's part; the catalogue grew, and the last shard with it."""
RATE = 0.5 * MIB
CHUNK = 64 << 10


class Throttle:
    """No more than so many bytes a second."""

    def __init__(self, rate: float) -> None:
        self.rate, self.began, self.total = rate, time.monotonic(), 0

    def passed(self, count: int) -> None:
        """Wait until so much more may have gone through."""
        self.total += count
        ahead = self.total / self.rate - (time.monotonic() - self.began)
        if ahead > 0:
            time.sleep(ahead)


class Stager:
    """Copies a shard from the shared folder to scratch, and checks it."""

    def __init__(self, shared: Path, scratch: Path) -> None:
        self.shared, self.scratch = shared, scratch
        scratch.mkdir(parents=True, exist_ok=True)

    def _source(self, rank: int) -> Path:
        """The shard, which a real job finds there."""
        path = self.shared / f"shard-{rank:05d}.bin"
        with path.open("wb") as file:
            for _ in range(SIZES.get(rank, 1)):
                file.write(os.urandom(MIB))
        return path

    def stage(self, rank: int) -> Path:
        """The copy of this rank's shard."""
        source, target = self._source(rank), self.scratch / f"rank{rank}.bin"
        throttle, digest = Throttle(RATE), hashlib.sha256()
        with source.open("rb") as reader, target.open("wb") as writer:
            while chunk := reader.read(CHUNK):
                writer.write(chunk)
                digest.update(chunk)
                throttle.passed(len(chunk))
        if hashlib.sha256(target.read_bytes()).digest() != digest.digest():
            raise OSError(f"{target} is damaged")
        return target


def batches(path: Path, size: int = 4096):
    """Endless batches from the local copy."""
    data = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
    while True:
        for start in range(0, len(data) - size, size):
            yield data[start : start + size].float().view(64, 64) / 255.0


def train(rank: int, path: Path, steps: int) -> None:
    """As usual, from scratch."""
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, batch in zip(range(steps), batches(path), strict=False):
        optimizer.zero_grad()
        loss = (model(batch) - batch).pow(2).mean()
        loss.backward()
        optimizer.step()
        time.sleep(0.2)
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


def main() -> None:
    """Stage, join, train."""
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=3000)
    given = options.parse_args()
    rank, folder = int(os.environ["RANK"]), Path(os.environ["OUT_DIR"])
    (folder / "shared").mkdir(exist_ok=True)
    path = Stager(folder / "shared", folder / "scratch").stage(rank)
    print(f"rank {rank}: data staged, joining", flush=True)
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
    train(rank, path, given.steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
