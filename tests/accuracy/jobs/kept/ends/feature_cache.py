"""A rank keeps its features in memory, near the limit of its container, and uses them all."""

import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

MEGABYTE = 1 << 20
SHARE = 0.75


def enter_container() -> int:
    """Join the container; returns how many bytes it may use."""
    group = Path(os.environ["PLACE"])
    (group / "cgroup.procs").write_text(str(os.getpid()))
    names = ("memory.limit_in_bytes", "memory.max")
    return int(next((group / n).read_text() for n in names if (group / n).exists()))


class FeatureCache:
    """Features of all nodes of a graph, in blocks of 8 MB."""

    def __init__(self, size: int) -> None:
        self.blocks = [torch.rand(2 * MEGABYTE) for _ in range(size // (8 * MEGABYTE))]

    def refresh(self) -> None:
        """New values for a tenth of them."""
        for index in torch.randperm(len(self.blocks))[: len(self.blocks) // 10 + 1].tolist():
            self.blocks[index].uniform_()

    def neighbours(self, count: int) -> torch.Tensor:
        parts = [block[:: len(block) // (count * 16)][: count * 16] for block in self.blocks]
        return torch.stack(parts).mean(0).view(count, 16)


class GraphNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.ELU(), nn.Linear(64, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    limit = enter_container() if rank == 2 else 64 * MEGABYTE
    cache = FeatureCache(int(limit * SHARE))
    model = DistributedDataParallel(GraphNet())
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(100_000):
        cache.refresh()
        loss = model(cache.neighbours(32)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        time.sleep(1.0)


if __name__ == "__main__":
    main()
