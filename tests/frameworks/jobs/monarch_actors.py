"""Actors of Monarch that join a process group: rank 1 scores for ever, the others wait for it."""

from __future__ import annotations

import asyncio
import os
import time

import torch
import torch.distributed as dist
from monarch.actor import Actor, current_rank, endpoint, this_host
from monarch.spmd import setup_torch_elastic_env_async


class Trainer(Actor):
    @endpoint
    async def train(self):
        dist.init_process_group("gloo")
        for step in range(20):
            if current_rank().rank == 1 and step == 2:
                score_answers()
            dist.all_reduce(torch.ones(4))


def score_answers():
    print("HANGS", os.getpid(), flush=True)
    time.sleep(10000)


async def main():
    procs = this_host().spawn_procs(per_host={"gpus": 2})
    await setup_torch_elastic_env_async(procs)
    trainers = procs.spawn("trainers", Trainer)
    await trainers.train.call()


if __name__ == "__main__":
    asyncio.run(main())
