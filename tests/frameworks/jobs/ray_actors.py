"""Actors of Ray that join a process group: rank 1 plays games for ever, the others wait for it."""

from __future__ import annotations

import os
import sys
import time

import ray
import torch
import torch.distributed as dist


def play_games():
    print("HANGS", os.getpid(), flush=True)
    time.sleep(10000)


@ray.remote(num_cpus=1)
class Policy:
    def __init__(self, rank, address):
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
        self.rank = rank

    def update(self):
        for step in range(20):
            if self.rank == 1 and step == 2:
                play_games()
            dist.all_reduce(torch.ones(4))


if __name__ == "__main__":
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=200 << 20)
    policies = [Policy.remote(rank, f"tcp://127.0.0.1:{sys.argv[1]}") for rank in range(2)]
    ray.get([policy.update.remote() for policy in policies])
