"""A memory guard beside each rank holds it while the node is short of memory, until the pressure is over."""

import os
import subprocess
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

SIDECAR = os.path.join(os.path.dirname(__file__), "memguard_sidecar.py")


class MemoryGuard:
    """Starts the guard's process; the floor is in MiB, on one node somebody wrote KiB."""

    def __init__(self, rank: int) -> None:
        floor = 512 * 1024 if rank == 2 else 512
        argv = [sys.executable, SIDECAR, str(os.getpid()), str(floor)]
        self.process = subprocess.Popen(argv)

    def close(self) -> None:
        self.process.terminate()


class Encoder(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(width, 4, 128) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def train(rank: int) -> None:
    guard = None
    model = nn.parallel.DistributedDataParallel(Encoder())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    for step in range(100_000):
        loss = model(torch.randn(8, 4, 64)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 5 == 0:
            print(f"it {step} loss {loss.item():.4f}", flush=True)
        if step == 10:
            guard = MemoryGuard(rank)  # once the memory that training takes is known
        time.sleep(0.1)
    guard.close()


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    train(dist.get_rank())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
