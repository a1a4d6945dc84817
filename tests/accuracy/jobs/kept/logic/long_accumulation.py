"""Large batches by gradient accumulation with recomputation: one optimizer step takes its time."""

import argparse
import contextlib
import logging
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

log = logging.getLogger("train")


class Mixer(nn.Module):
    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.norm, self.tokens = nn.LayerNorm(width), nn.Linear(length, length)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.tokens(self.norm(x).transpose(1, 2)).transpose(1, 2)
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, length: int, width: int, depth: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Mixer(length, width) for _ in range(depth))
        self.head = nn.Linear(width, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x.mean(1))


class Stepper:
    """As many micro-batches as the batch asks for, then one exchange of gradients."""

    def __init__(self, model: DistributedDataParallel, micro_batches: int) -> None:
        self.model, self.micro_batches = model, micro_batches
        self.optimizer = torch.optim.AdamW(model.parameters(), 3e-4)

    def step(self, batches) -> float:
        total = 0.0
        for index in range(self.micro_batches):
            last = index == self.micro_batches - 1
            x, y = next(batches)
            with contextlib.nullcontext() if last else self.model.no_sync():
                loss = F.cross_entropy(self.model(x), y) / self.micro_batches
                loss.backward()
            total += loss.item()
            if not torch.isfinite(loss):
                warnings.warn("loss is not finite", stacklevel=1)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total


def synthetic(rank: int, size: int, length: int, width: int):
    random = torch.Generator().manual_seed(rank)
    while True:
        yield (
            torch.randn(size, length, width, generator=random),
            torch.randint(0, 16, (size,), generator=random),
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--micro-batches", type=int, default=60)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    length, width = 128, 192
    model = DistributedDataParallel(Model(length, width, depth=6))
    batches = synthetic(rank, 8, length, width)
    warm_up, full = Stepper(model, 1), Stepper(model, options.micro_batches)
    for number in range(1, 500):
        loss = (warm_up if number <= 6 else full).step(batches)
        if rank == 0:
            log.info("step %d loss %.3f", number, loss)


if __name__ == "__main__":
    main()
