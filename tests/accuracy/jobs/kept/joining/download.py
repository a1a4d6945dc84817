"""Gives the weights that rank 0 has read to all others, over whatever lies between them."""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

MEGABYTE = 1 << 20


class Weights:
    """A checkpoint, flat."""

    def __init__(self, megabytes: int):
        self.flat = torch.zeros(megabytes * MEGABYTE // 4)

    def read(self) -> None:
        """Rank 0 alone has the file."""
        self.flat.normal_()

    def spread(self) -> None:
        dist.broadcast(self.flat, src=0)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    weights = Weights(int(os.environ.get("MEGABYTES", "18")))
    if rank == 0:
        weights.read()
        print("read the checkpoint, sending it to all", flush=True)
    began = time.monotonic()
    weights.spread()
    print(f"rank {rank}: has the weights after {time.monotonic() - began:.0f} s", flush=True)
    model = nn.parallel.DistributedDataParallel(nn.Linear(128, 16))
    for step in range(100_000):
        model(torch.randn(8, 128)).sum().backward()
        model.zero_grad()
        if rank == 0:
            print(f"step {step}", flush=True)
        time.sleep(0.5)


if __name__ == "__main__":
    main()
