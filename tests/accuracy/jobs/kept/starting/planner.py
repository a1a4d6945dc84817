"""Training whose rank 0 also plans: each epoch it deals the shards out over the job's store."""

import json
import random
import time
from datetime import timedelta

import torch
import torch.distributed as dist

SHARDS = 24


class Planner:
    """Deals shards to ranks that keep up."""

    def __init__(self, store, world_size):
        self.store, self.world_size = store, world_size
        self.speed = {}

    def observe(self, speeds):
        """Keep how fast the ranks were, in samples per second."""
        self.speed = dict(enumerate(speeds))

    def active(self):
        """Ranks that get work: all, or those not far behind the median."""
        if not self.speed:
            return list(range(self.world_size))
        median = sorted(self.speed.values())[len(self.speed) // 2]
        return [rank for rank, speed in self.speed.items() if speed > 0.5 * median]

    def deal(self, epoch):
        """Publish who reads what."""
        ranks = self.active()
        shards = list(range(SHARDS))
        random.Random(epoch).shuffle(shards)
        for place, rank in enumerate(ranks):
            self.store.set(f"plan/{epoch}/{rank}", json.dumps(shards[place :: len(ranks)]))


class Worker:
    """Trains on the shards it was dealt."""

    def __init__(self, store):
        self.store = store
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.model = torch.nn.Linear(32, 8)

    def shards(self, epoch):
        """What this rank reads in an epoch."""
        return json.loads(self.store.get(f"plan/{epoch}/{self.rank}"))

    def epoch(self, epoch):
        """One epoch; samples per second of this rank."""
        began = time.monotonic()
        for shard in self.shards(epoch):
            self.step(shard)
        samples = 16 * SHARDS / self.world_size
        return samples / (time.monotonic() - began)

    def step(self, shard):
        """One batch of a shard."""
        loss = self.model(torch.randn(16, 32) + shard).square().mean()
        loss.backward()
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.data -= 1e-3 * parameter.grad
            parameter.grad = None
        if self.rank == 0:
            print(f"shard {shard} {loss.item():.3f}", flush=True)


def gather_speeds(worker, speed, epoch):
    """Speeds of all ranks, for the planner; rank 3's node was throttled in epoch 1."""
    speeds = [torch.zeros(1) for _ in range(worker.world_size)]
    if epoch == 1 and worker.rank == 3:
        speed *= 0.3
    dist.all_gather(speeds, torch.tensor([speed]))
    return [one.item() for one in speeds]


def main():
    """Plan, train, measure."""
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    store = dist.PrefixStore("planner", dist.distributed_c10d._get_default_store())
    worker = Worker(store)
    planner = Planner(store, worker.world_size) if worker.rank == 0 else None
    for epoch in range(1000):
        if planner is not None:
            print(f"epoch {epoch}", flush=True)
            planner.deal(epoch)
        speeds = gather_speeds(worker, worker.epoch(epoch), epoch)
        if planner is not None:
            planner.observe(speeds)


if __name__ == "__main__":
    main()
