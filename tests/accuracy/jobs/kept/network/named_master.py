"""A trainer of a StatefulSet: pods find the first one by its name, and start with an import test."""

import os
import socket
import time
from datetime import timedelta

import torch
import torch.distributed as dist

SERVICE = os.environ["MASTER_ADDR"]


def preflight():
    """What has gone wrong before in these pods."""
    checks = {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "master": socket.gethostbyname(SERVICE),
        "matmul": bool(torch.isfinite(torch.randn(64, 64) @ torch.randn(64, 64)).all()),
    }
    said = " ".join(f"{name}={value}" for name, value in checks.items())
    print(f"[{os.uname().nodename}] preflight {said}", flush=True)


def bootstrap():
    rank = int(os.environ["RANK"])
    print(f"[{os.uname().nodename}] rank {rank} connects to {SERVICE}", flush=True)
    dist.init_process_group("gloo", init_method="env://", timeout=timedelta(minutes=45))
    return rank


class MovingAverage(torch.nn.Module):
    """Something to train that has buffers, too."""

    def __init__(self, size):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(size))
        self.register_buffer("mean", torch.zeros(size))

    def forward(self, values):
        self.mean.lerp_(values.mean(dim=0), 0.1)
        return (values - self.mean) * self.scale


def main():
    preflight()
    rank = bootstrap()
    module = torch.nn.parallel.DistributedDataParallel(MovingAverage(20))
    optimizer = torch.optim.RMSprop(module.parameters())
    for step in range(100_000):
        loss = (module(torch.randn(8, 20) + 3) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} {loss.item():.4f}", flush=True)
        time.sleep(0.3)


if __name__ == "__main__":
    main()
