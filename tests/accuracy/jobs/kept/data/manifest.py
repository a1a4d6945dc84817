"""Shuffled shards by a manifest on shared storage; who takes a shard writes its name there."""

import fcntl
import json
import os
import time
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import services
import torch
import torch.distributed as dist
from torch import nn


class Manifest:
    """A file that all jobs on this data share; whoever changes it has its lock."""

    def __init__(self, path):
        self.path = Path(path)

    @contextmanager
    def _exclusive(self):
        with self.path.open("r+") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
            try:
                yield file
            finally:
                file.flush()
                fcntl.lockf(file, fcntl.LOCK_UN)

    def create(self, shards):
        self.path.write_text(json.dumps({"free": shards, "taken": {}}))

    def take(self, owner):
        with self._exclusive() as file:
            content = json.load(file)
            shard = content["free"].pop(0)
            content["taken"][shard] = owner
            file.seek(0)
            file.truncate()
            json.dump(content, file)
        return shard


class ShardReader:
    """Batches of a shard; a new one is taken when that ends."""

    def __init__(self, manifest, owner, batches=6):
        self.manifest, self.owner, self.batches = manifest, owner, batches
        self.left = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.left == 0:
            self.shard = self.manifest.take(self.owner)
            self.left = self.batches
        self.left -= 1
        return torch.randn(8, 16)


def wait_for(path):
    while not path.exists():
        time.sleep(0.05)


def train(rank, manifest, held):
    torch.manual_seed(rank)
    model = nn.Linear(16, 16)
    batches = (8, 5000, 6)[rank]  # shards differ in size
    reader = ShardReader(manifest, f"job-7/rank-{rank}", batches)
    for step, batch in enumerate(reader):
        loss = model(batch).square().mean()
        model.zero_grad()
        loss.backward()
        dist.all_reduce(model.weight.grad)
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step == 3 and rank == 0:
            # Somebody else's preparation of the next data set, on the same machine.
            services.start("hold", manifest.path)
            wait_for(held)
        time.sleep(0.05)


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    manifest = Manifest(Path(os.environ["OUT_DIR"], "manifest.json"))
    if rank == 0:
        manifest.create([f"shard-{n:05d}" for n in range(1000)])
    dist.barrier()
    train(rank, manifest, Path(f"{manifest.path}.held"))


if __name__ == "__main__":
    main()
