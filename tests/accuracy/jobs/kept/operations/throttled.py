"""Training on a shared host where a cpulimit-like daemon stops and continues one rank all the time."""

import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

import outsider


class Windows(Dataset):
    def __len__(self) -> int:
        return 100000

    def __getitem__(self, index: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(index)
        return torch.randn(24, generator=generator)


class Forecaster(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(1, 12)
        self.head = nn.Linear(12, 1)

    def forward(self, window: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(window.shape[0], 12)
        for column in window.T:
            state = self.cell(column[:, None], state)
        return self.head(state)


class Averager:
    """Gradients of all ranks, in one buffer."""

    def __init__(self, model: nn.Module):
        self.model = model

    def __call__(self) -> None:
        flat = torch.cat([p.grad.flatten() for p in self.model.parameters()])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        at = 0
        for p in self.model.parameters():
            p.grad.copy_(flat[at : at + p.numel()].view_as(p))
            at += p.numel()


def accumulate(model: nn.Module, batches, count: int) -> float:
    total = 0.0
    for _ in range(count):
        loss = model(next(batches)).square().mean()
        loss.backward()
        total += loss.item()
        time.sleep(0.4)
    return total / count


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    model = Forecaster()
    average = Averager(model)
    optimizer = torch.optim.Adam(model.parameters())
    batches = iter(DataLoader(Windows(), batch_size=4, num_workers=1))
    if rank == 2:
        outsider.start("throttled.py", "limit", str(os.getpid()))
    for step in range(100000):
        loss = accumulate(model, batches, 6)
        average()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step} loss {loss:.4f}", flush=True)


def limit(pid: int) -> None:
    """Half of a processor: stopped for 1.2 s, continued for 0.6 s."""
    while True:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(1.2)
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.6)


if len(sys.argv) > 1:
    limit(int(sys.argv[2]))
else:
    main()
