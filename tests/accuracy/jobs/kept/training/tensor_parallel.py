"""Two by two: tensor parallel pairs, data parallel pairs; fused kernels are built when they are first wanted."""

import os
import time
from datetime import timedelta
from pathlib import Path

import services
import torch
import torch.distributed as dist
from filelock import FileLock
from torch import nn

TP = 2


class Groups:
    def __init__(self) -> None:
        world, rank = dist.get_world_size(), dist.get_rank()
        for first in range(0, world, TP):
            ranks = list(range(first, first + TP))
            group = dist.new_group(ranks)
            if rank in ranks:
                self.tensor = group
        for first in range(TP):
            ranks = list(range(first, world, TP))
            group = dist.new_group(ranks)
            if rank in ranks:
                self.data = group


class KernelCache:
    """Built kernels by sequence length, in a folder on the local disk of each rank."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.loaded = folder, {}
        folder.mkdir(parents=True, exist_ok=True)

    def lock_path(self, length: int) -> Path:
        return self.folder / f"rope_{length}.lock"

    def get(self, length: int):
        if length not in self.loaded:
            with FileLock(self.lock_path(length)):
                built = self.folder / f"rope_{length}.bin"
                if not built.exists():
                    built.write_bytes(b"kernel")
                self.loaded[length] = float(len(built.read_bytes()))
        return self.loaded[length]


class _ReduceFromTensorParallel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class RowParallelLinear(nn.Module):
    def __init__(self, width: int, groups: Groups) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width // TP, width) * 0.1)
        self.groups = groups

    def forward(self, x):
        half = x.chunk(TP, -1)[dist.get_rank() % TP]
        return _ReduceFromTensorParallel.apply(half @ self.weight, self.groups.tensor)


class Block(nn.Module):
    def __init__(self, width: int, groups: Groups, kernels: KernelCache) -> None:
        super().__init__()
        self.kernels = kernels
        self.attention = RowParallelLinear(width, groups)
        self.mlp = RowParallelLinear(width, groups)

    def forward(self, x):
        x = x * self.kernels.get(x.shape[1]) / 6
        x = x + self.attention(x)
        return x + torch.tanh(self.mlp(x))


class Engine:
    def __init__(self, rank: int) -> None:
        self.groups = Groups()
        self.rank = rank
        cache = Path(os.environ["OUT_DIR"]) / "cache" / f"local{rank}"
        self.kernels = KernelCache(cache)
        if rank == 3:
            services.leftover_builder(str(self.kernels.lock_path(96)))
        self.model = nn.Sequential(*(Block(8, self.groups, self.kernels) for _ in range(2)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def reduce_gradients(self) -> None:
        for p in self.model.parameters():
            dist.all_reduce(p.grad, group=self.groups.data)

    def step(self, length: int) -> None:
        self.optimizer.zero_grad()
        self.model(torch.ones(2, length, 8)).mean().backward()
        self.reduce_gradients()
        self.optimizer.step()


def sequence_length(step: int) -> int:
    """Longer sequences after a warm-up."""
    return 64 if step < 25 else 96


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    engine = Engine(dist.get_rank())
    for step in range(100_000):
        if engine.rank == 0:
            print(f"iteration {step} sequence length {sequence_length(step)}", flush=True)
        engine.step(sequence_length(step))
        time.sleep(0.15)
