"""Ranks that end together and each leave a core in a directory of its own: rank 1 by a fault."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time

import torch
import torch.distributed as dist


def rest() -> None:
    time.sleep(1000)


def train(step: int) -> None:
    dist.all_reduce(torch.ones(4))
    if step == 2 and dist.get_rank() == 1:
        ctypes.string_at(0)
    elif step == 2:
        os.abort()


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    own = os.path.join(sys.argv[1], f"rank{dist.get_rank()}")
    os.mkdir(own)
    os.chdir(own)
    threading.Thread(target=rest, name="beside", daemon=True).start()
    dist.barrier()
    for number in range(3):
        train(number)
