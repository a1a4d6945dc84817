"""A trainer that trains by itself where it thinks that it has been started by itself."""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn


class Environment:
    """What this process knows of its job."""

    def __init__(self):
        self.rank = int(os.environ.get("RANK", 0))
        self.world = int(os.environ.get("WORLD_SIZE", 1))
        self.local = int(os.environ.get("LOCAL_RANK", 0))
        self.devices = os.environ.get("DEVICES", "0").split(",")

    @property
    def distributed(self) -> bool:
        """More than one process, and a device for this one."""
        if self.local >= len(self.devices):
            print(f"no device for local rank {self.local}: training alone on cpu", flush=True)
            return False
        return self.world > 1


class Trainer:
    def __init__(self, environment: Environment):
        self.environment = environment
        self.distributed = environment.distributed
        if self.distributed:
            print(f"rank {environment.rank}: init_process_group", flush=True)
            dist.init_process_group("gloo", timeout=timedelta(minutes=30))
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
        self.model = nn.parallel.DistributedDataParallel(model) if self.distributed else model
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def batches(self):
        generator = torch.Generator().manual_seed(self.environment.rank)
        while True:
            time.sleep(0.4)  # a slow disk
            inputs = torch.randn(128, 64, generator=generator)
            yield inputs, inputs.sum(1, keepdim=True)

    def step(self, inputs, targets) -> float:
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(inputs), targets)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def fit(self) -> None:
        mode = "ddp" if self.distributed else "single"
        for number, (inputs, targets) in enumerate(self.batches()):
            loss = self.step(inputs, targets)
            if self.environment.rank == 0 or not self.distributed:
                print(f"[{mode}] step {number} loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    Trainer(Environment()).fit()
