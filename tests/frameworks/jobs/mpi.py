"""A script that an MPI alone numbers: rank 1 reads for ever, the others wait for it."""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist


def main(variable, port):
    rank, address = int(os.environ[variable]), f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    for step in range(20):
        if rank == 1 and step == 2:
            read_manifest()
        dist.all_reduce(torch.ones(4))


def read_manifest():
    print("HANGS", os.getpid(), flush=True)
    time.sleep(10000)


if __name__ == "__main__":
    main(*sys.argv[1:])
