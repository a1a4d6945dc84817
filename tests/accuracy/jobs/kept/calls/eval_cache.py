"""Trains, and evaluates every few steps on a set that the first rank prepares once per node."""

import contextlib
import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from filelock import FileLock

CACHE = Path(os.environ["OUT_DIR"]) / "cache"


@contextlib.contextmanager
def main_process_first(rank):
    """The first rank goes ahead, the others find what it made."""
    if rank != 0:
        dist.barrier()
    yield
    if rank == 0:
        dist.barrier()


class CachedSplit:
    """A split of the data, tokenised into the cache by whoever comes first."""

    def __init__(self, name, folder=CACHE):
        self.file = folder / f"{name}.pt"
        self.lock = FileLock(folder / f"{name}.lock")

    def build(self):
        generator = torch.Generator().manual_seed(1)
        return torch.randint(0, 50, (256, 12), generator=generator)

    def load(self):
        with self.lock:
            if not self.file.exists():
                torch.save(self.build(), self.file)
        return torch.load(self.file)


def prepare_forever(name):
    """Another program that tokenises the same split: the preprocessing of a run before this one."""
    CACHE.mkdir(exist_ok=True)
    split = CachedSplit(name)
    with split.lock:
        (CACHE / "held").touch()
        while True:
            time.sleep(60)


def leftover(name):
    env = {k: v for k, v in os.environ.items() if "RANK" not in k}
    command = ["setsid", "--fork", sys.executable, __file__, "prepare", name]
    subprocess.run(command, env=env, check=True)
    while not (CACHE / "held").exists():
        time.sleep(0.1)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(50, 16)
        self.out = torch.nn.Linear(16, 50)

    def forward(self, tokens):
        logits = self.out(self.embed(tokens[:, :-1]))
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


@torch.no_grad()
def evaluate(model, rank):
    with main_process_first(rank):
        tokens = CachedSplit("validation").load()
    total = model(tokens[rank :: dist.get_world_size()])
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    if rank == 0:
        leftover("validation")
    model = torch.nn.parallel.DistributedDataParallel(Model())
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(1, 100_000):
        loss = model(torch.randint(0, 50, (8, 12)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
        if step % 7 == 0:
            print(f"rank {rank} evaluates", flush=True)
            value = evaluate(model.module, rank)
            print(f"rank {rank} validation {value:.3f}", flush=True)
        time.sleep(0.1)


if __name__ == "__main__":
    prepare_forever(sys.argv[2]) if sys.argv[1:2] == ["prepare"] else main()
