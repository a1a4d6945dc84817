"""Ranks for `hangtop debug`: rank 0 makes steps of its own, rank 1 waits in C for a collective.

Rank 2 sits in a breakpoint that was left in the code.
Once there is PATH.end rank 0 joins the collective, too; all write the sum to PATH.rankN.
"""

from __future__ import annotations

import os
import pdb
import sys
import threading
import time

import torch
import torch.distributed as dist


def step(number: int) -> int:
    double = number * 2
    time.sleep(0.02)
    return double


def train(path: str) -> None:
    number = 0
    while not os.path.exists(f"{path}.end"):
        number += 1
        step(number)
        with open(f"{path}.steps", "w") as file:
            file.write(str(number))


def forgotten(path: str) -> None:
    """A breakpoint that is answered with `c` once there is PATH.end."""
    reader, writer = os.pipe()
    os.dup2(reader, 0)

    def answer() -> None:
        while not os.path.exists(f"{path}.end"):
            time.sleep(0.05)
        os.write(writer, b"c\n")

    threading.Thread(target=answer, daemon=True).start()
    pdb.set_trace()


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0:
        train(sys.argv[1])
    if rank == 2:
        forgotten(sys.argv[1])
    total = torch.ones(1)
    dist.all_reduce(total)
    with open(f"{sys.argv[1]}.rank{rank}", "w") as file:
        file.write(str(int(total)))
    dist.destroy_process_group()
