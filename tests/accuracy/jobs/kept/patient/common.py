"""What the training scripts here share: joining, a small model, its steps."""

import datetime
import os
import time

import torch
import torch.distributed as dist
from torch import nn

PATIENCE = datetime.timedelta(minutes=30)


def join() -> tuple[int, int]:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=PATIENCE)
    return dist.get_rank(), dist.get_world_size()


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] [rank {os.environ['RANK']}] {text}", flush=True)


class Learner:
    """A data-parallel model with its optimizer."""

    def __init__(self, width: int = 64) -> None:
        net = nn.Sequential(nn.Linear(width, 128), nn.GELU(), nn.Linear(128, width))
        self.width = width
        self.model = nn.parallel.DistributedDataParallel(net)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.steps = 0

    def step(self, batch: torch.Tensor | None = None) -> float:
        batch = torch.randn(16, self.width) if batch is None else batch
        loss = (self.model(batch) - batch).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.steps += 1
        return loss.item()
