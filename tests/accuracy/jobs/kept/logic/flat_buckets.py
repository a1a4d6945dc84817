"""Data parallel by hand with flat gradient buckets.

size:  each rank tunes its bucket size by the memory it has left
dtype: each rank falls back to full precision for its gradients after overflows
"""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

MIB = 1 << 20


class Wide(nn.Module):
    """An embedding table and a few layers: 16 MiB in float32 for four ranks, twelve for three."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(rows, 512) * 0.02)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table[ids].tanh().mean((1, 2)).pow(2).sum()


class MemoryWatch:
    """What is left of this rank's budget; caches of the reader take more of it in time."""

    def __init__(self, rank: int, budget: int = 256 * MIB) -> None:
        self.rank, self.left = rank, budget

    def step(self) -> None:
        self.left -= (30 if self.rank == 2 else 1) * MIB


class BucketTuner:
    """Keeps two buckets in flight below a third of what is left."""

    def __init__(self, watch: MemoryWatch, size: int = 16 * MIB) -> None:
        self.watch, self.size = watch, size

    def tuned(self) -> int:
        while self.size > 2 * MIB and 2 * self.size > self.watch.left / 1.5:
            self.size //= 2
        return self.size


class Precision:
    """Gradients go in bfloat16 until this rank has seen an overflow."""

    def __init__(self) -> None:
        self.dtype = torch.bfloat16

    def observe(self, loss: torch.Tensor) -> None:
        if loss.item() > 1e6:
            self.dtype = torch.float32


class GradientSync:
    """Copies gradients to a flat buffer, sums it piece by piece, copies back."""

    def __init__(
        self, model: nn.Module, tuner: BucketTuner | None, precision: Precision | None
    ) -> None:
        self.parameters = list(model.parameters())
        self.tuner, self.precision = tuner, precision

    def pieces(self, flat: torch.Tensor):
        if self.tuner is None:
            return [flat]
        return flat.split(self.tuner.tuned() // flat.element_size())

    def run(self) -> None:
        flat = torch.cat([p.grad.flatten() for p in self.parameters])
        if self.precision is not None:
            flat = flat.to(self.precision.dtype)
        for piece in self.pieces(flat):
            dist.all_reduce(piece)
        flat = flat.float() / dist.get_world_size()
        for parameter, part in zip(
            self.parameters, flat.split([p.numel() for p in self.parameters]), strict=True
        ):
            parameter.grad.copy_(part.view_as(parameter))


class Ids:
    def __init__(self, rank: int, rows: int) -> None:
        self.random, self.rows = torch.Generator().manual_seed(rank), rows

    def next(self) -> torch.Tensor:
        return torch.randint(0, self.rows, (4, 8), generator=self.random)


def run(mode: str) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    rows = 2048 * world
    model, ids, watch = Wide(rows), Ids(rank, rows), MemoryWatch(rank)
    precision = Precision() if mode == "dtype" else None
    sync = GradientSync(model, BucketTuner(watch) if mode == "size" else None, precision)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(1, 2000):
        loss = model(ids.next())
        if mode == "dtype" and rank == 1 and step == 8:
            loss = loss * 1e30  # a corrupt example
        if precision is not None:
            precision.observe(loss)
        loss.backward()
        sync.run()
        optimizer.step()
        optimizer.zero_grad()
        watch.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4g}", flush=True)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    torch.manual_seed(0)
    torch.set_num_threads(1)
    run(sys.argv[1])


if __name__ == "__main__":
    main()
