"""Domains are tokenized into a cache when the curriculum first comes to them.

The cache lies on shared storage without working locks, so its lock is a folder: `mkdir` is atomic.
"""

import json
import os
import random
import socket
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class DirectoryLock:
    """Works on every file system."""

    def __init__(self, path):
        self.path = Path(path)

    def __enter__(self):
        pause = 0.1
        while True:
            try:
                self.path.mkdir()
                break
            except FileExistsError:
                time.sleep(pause * (1 + random.random()))
                pause = min(pause * 2, 5.0)
        me = {"host": socket.gethostname(), "pid": os.getpid()}
        (self.path / "owner.json").write_text(json.dumps(me))
        return self

    def __exit__(self, *_):
        (self.path / "owner.json").unlink()
        self.path.rmdir()


class TokenCache:
    def __init__(self, root):
        self.root = Path(root)
        self.root.mkdir(parents=True, exist_ok=True)

    def get(self, domain):
        target = self.root / f"{domain}.pt"
        with DirectoryLock(self.root / f"{domain}.lock"):
            if not target.exists():
                torch.save(self._tokenize(domain), target)
        return torch.load(target)

    def _tokenize(self, domain):
        generator = torch.Generator().manual_seed(len(domain))
        return torch.randint(256, (64, 32), generator=generator)


class Curriculum:
    """Each rank trains on its own domains, in stages."""

    stages = (("web", "books", "code"), ("forums", "papers", "math"))

    def __init__(self, cache, rank, length=6):
        self.cache, self.rank, self.length = cache, rank, length

    def batches(self):
        for stage in self.stages:
            tokens = self.cache.get(stage[self.rank])
            for n in range(self.length):
                yield tokens[n * 8 : n * 8 + 8]


def leave_behind(root):
    """What a preparation job left that was killed last week on another node."""
    lock = Path(root, "papers.lock")
    lock.mkdir(parents=True)
    (lock / "owner.json").write_text(json.dumps({"host": "prep-014", "pid": 88123}))


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    root = Path(os.environ["OUT_DIR"], "tokens")
    if rank == 0:
        leave_behind(root)
    dist.barrier()
    model = DistributedDataParallel(nn.Sequential(nn.Embedding(256, 16), nn.Linear(16, 256)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, tokens in enumerate(Curriculum(TokenCache(root), rank).batches()):
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        time.sleep(0.05)
    dist.barrier()


if __name__ == "__main__":
    main()
