"""One rank's container has three hundredths of a core: every step waits for it, and every step ends.

PLACE is the cgroup with the quota, into which the second rank's node agent has put it.
"""

import datetime
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

GROUP = Path(os.environ["PLACE"])
SLOW = 1


def limit(cores: float) -> None:
    """What the operator has set for this container."""
    period = 100_000
    for name in ("cpu.cfs_quota_us", "cpu.max"):
        if (GROUP / name).exists():
            (GROUP / name).write_text(f"{cores * period:.0f}")


def join_container() -> None:
    """This process, and all of its threads."""
    (GROUP / "cgroup.procs").write_text(str(os.getpid()))


class Block(nn.Module):
    """A convolution, a norm, an activation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.GroupNorm(4, channels)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Residual."""
        return images + torch.relu(self.norm(self.convolution(images)))


class Network(nn.Module):
    """A classifier of small images."""

    def __init__(self, channels: int = 16, depth: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.blocks = nn.Sequential(*(Block(channels) for _ in range(depth)))
        self.head = nn.Linear(channels, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.head(self.blocks(self.stem(images)).mean(dim=(2, 3)))


def average_gradients(model: nn.Module) -> None:
    """One flat all_reduce."""
    gradients = [p.grad for p in model.parameters()]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def train(rank: int) -> None:
    """Steps of a quarter of a second of work on each rank."""
    torch.manual_seed(0)
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    for step in range(5000):
        if rank == SLOW and step == 3:
            limit(0.03)
            join_container()
        began = time.process_time()
        optimizer.zero_grad()
        while time.process_time() - began < 0.25:
            images, labels = torch.randn(4, 3, 16, 16), torch.randint(0, 10, (4,))
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
        average_gradients(model)
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
    train(dist.get_rank())
    dist.destroy_process_group()
