"""Rank 0 evaluates while the others wait in a barrier: what it waits for works elsewhere.

python evaluator.py native|varies|trickle|scorer|endless
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

PROGRAM = """
import time
for number in range(1000):
    until, score = time.process_time() + 7, 0
    while time.process_time() < until:
        score += number * number
    print(score, flush=True)
"""


def factorize(seconds: float) -> None:
    """Linear algebra: C code that lets go of the GIL."""
    until = time.process_time() + seconds
    while time.process_time() < until:
        torch.linalg.qr(torch.randn(300, 300))


def tokenize(seconds: float) -> int:
    """Plain Python."""
    until, words = time.process_time() + seconds, 0
    while time.process_time() < until:
        words += len("the quick brown fox".split())
    return words


def download() -> None:
    """Read a file that comes a little at a time."""
    ours, theirs = os.pipe()

    def serve() -> None:
        for _ in range(8):
            time.sleep(2.0)
            os.write(theirs, b"x")

    threading.Thread(target=serve, daemon=True).start()
    for _ in range(8):
        os.read(ours, 1)
    os.close(ours)
    os.close(theirs)


def refine(index: int) -> None:
    """Look for a fixed point, which does not exist for every sample."""
    value = 0
    while index >= 3 and value >= 0:
        value += 1


WAYS = {
    "native": lambda index: factorize(6.0),
    "varies": lambda index: tokenize((1, 2, 12, 3, 9, 1, 14)[index % 7]),
    "trickle": lambda index: download(),
    "endless": refine,
}


class Samples(Dataset):
    """Samples that take long to prepare."""

    def __init__(self, way: str) -> None:
        self.way = way

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> torch.Tensor:
        WAYS[self.way](index)
        return torch.zeros(4)


def score() -> None:
    """Let a program of its own score the samples, and read what it prints."""
    argv = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as scorer:
        assert scorer.stdout is not None
        for line in scorer.stdout:
            int(line)


def evaluate(way: str) -> None:
    """Go through the samples with one worker."""
    print("evaluating", flush=True)
    if way == "scorer":
        score()
    for _ in DataLoader(Samples(way), batch_size=1, num_workers=1, prefetch_factor=1):
        pass


def main() -> None:
    """Join, evaluate on rank 0, and go on together."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(hours=1))
    if dist.get_rank() == 0:
        evaluate(sys.argv[1])
    dist.barrier()


if __name__ == "__main__":
    main()
