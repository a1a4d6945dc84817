"""Every step has an all_reduce, and takes one rank several times as long as the others.

python unequal.py SECONDS_OF_RANK_1 SECONDS_OF_OTHERS
"""

from __future__ import annotations

import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist


def compute(seconds: float) -> None:
    """Do arithmetic for so many seconds of the processor."""
    until = time.process_time() + seconds
    matrix = torch.eye(64)
    while time.process_time() < until:
        matrix = torch.tanh(matrix @ matrix)


def main() -> None:
    """Train."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(hours=1))
    slow, fast = map(float, sys.argv[1:3])
    loss = torch.ones(8)
    for step in range(100_000):
        compute(slow if dist.get_rank() == 1 else fast)
        dist.all_reduce(loss)
        if dist.get_rank() == 0:
            print("step", step, flush=True)


if __name__ == "__main__":
    main()
