"""A convolutional surrogate on rows of a field, one slab of rows a rank, halos from the neighbours."""

import os
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

NOMINAL = 32
WIDTH = 64


@dataclass
class Slab:
    """Rows that a rank owns."""

    offset: int
    rows: int

    @property
    def colour(self) -> int:
        """Red and black slabs: of two neighbours one sends first."""
        return (self.offset // NOMINAL) % 2


class Partition:
    def __init__(self, world: int) -> None:
        self.rows = [NOMINAL] * world

    def rebalance(self) -> None:
        """Rows of the boundary layer cost more: the second slab gives some away."""
        self.rows[1] -= 4
        self.rows[2] += 4

    def slab(self, rank: int) -> Slab:
        return Slab(sum(self.rows[:rank]), self.rows[rank])


class HaloExchange:
    """Border rows with the rank below and the rank above; pairs (0, 1), (2, 3) go before (1, 2)."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world

    def neighbours(self) -> list[int]:
        pair = self.rank ^ 1
        other = self.rank - 1 if self.rank % 2 == 0 else self.rank + 1
        return [peer for peer in (pair, other) if 0 <= peer < self.world]

    def trade(self, peer: int, mine: torch.Tensor, sends_first: bool) -> torch.Tensor:
        theirs = torch.empty_like(mine)
        if sends_first:
            dist.send(mine, peer)
            dist.recv(theirs, peer)
        else:
            dist.recv(theirs, peer)
            dist.send(mine, peer)
        return theirs

    def run(self, field: torch.Tensor, slab: Slab) -> torch.Tensor:
        above = below = torch.zeros(1, WIDTH)
        for peer in self.neighbours():
            border = field[-1:] if peer > self.rank else field[:1]
            halo = self.trade(peer, border.contiguous(), slab.colour == 0)
            above, below = (above, halo) if peer > self.rank else (halo, below)
        return torch.cat([above, field, below])


class Surrogate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 6, 3, padding=(0, 1)), nn.Tanh(), nn.Conv2d(6, 1, 1))

    def forward(self, padded: torch.Tensor) -> torch.Tensor:
        return self.net(padded[None, None])[0, 0]


def residual(loss: torch.Tensor) -> float:
    total = loss.detach().clone()
    dist.all_reduce(total)
    return total.item()


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, partition, exchange = Surrogate(), Partition(world), HaloExchange(rank, world)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for step in range(1, 2000):
        if step == 8:
            partition.rebalance()
        slab = partition.slab(rank)
        field = torch.sin(torch.arange(slab.offset, slab.offset + slab.rows)[:, None] * 0.1).repeat(
            1, WIDTH
        )
        padded = exchange.run(field, slab)
        loss = (model(padded) - field.cos()).pow(2).mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        total = residual(loss)
        if rank == 0:
            print(f"step {step} residual {total:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
