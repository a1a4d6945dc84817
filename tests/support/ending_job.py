"""Ranks of gloo that end: `finish`, `raise` or `sleep`, what the last one does while others wait.

As `ending_job.py HOW` it is a rank of a launcher; as `ending_job.py HOW METHOD PORT` it starts two.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import multiprocessing


def rank_main(rank: int, world: int, how: str) -> None:
    """Reduce twice together, and once more without the last rank."""
    late = timedelta(seconds=5 if how == "sleep" else 600)
    dist.init_process_group("gloo", rank=rank, world_size=world, timeout=late)
    pair = dist.new_group([0, world - 1])
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    dist.all_reduce(tensor)
    if rank < world - 1:
        try:
            dist.all_reduce(tensor)
        finally:
            dist.destroy_process_group(pair)
            dist.destroy_process_group()
    elif how == "raise":
        raise ValueError("bad batch")
    elif how == "sleep":
        time.sleep(600)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[3])
        arguments = (2, sys.argv[1])
        multiprocessing.start_processes(rank_main, arguments, 2, start_method=sys.argv[2])
    else:
        rank_main(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), sys.argv[1])
