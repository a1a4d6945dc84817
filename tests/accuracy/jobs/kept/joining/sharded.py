"""Optimizer state in shards: gradients are reduced, each rank updates its part, parts are shared."""

import logging
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

log = logging.getLogger("sharded")


class FlatParameters:
    """All weights in one vector, of which every rank owns a slice."""

    def __init__(self, shapes, world: int, rank: int):
        size = sum(torch.Size(shape).numel() for shape in shapes)
        self.part = -(-size // world)
        self.flat = torch.zeros(self.part * world)
        torch.nn.init.normal_(self.flat, std=0.02)
        dist.broadcast(self.flat, src=0)
        self.mine = slice(rank * self.part, (rank + 1) * self.part)
        self.world = world

    def gradient(self, batch) -> torch.Tensor:
        return 2 * (self.flat - batch.mean()) / len(self.flat)


class ShardedMomentum:
    """SGD with momentum; the momentum is kept for the own slice only."""

    def __init__(self, parameters: FlatParameters, lr: float = 0.1, beta: float = 0.9):
        self.parameters, self.lr, self.beta = parameters, lr, beta
        self.momentum = torch.zeros(parameters.part)

    def step(self, gradient: torch.Tensor) -> None:
        pending = [
            dist.all_reduce(piece, async_op=True) for piece in gradient.chunk(4) if piece.numel()
        ]
        for work in pending:
            work.wait()
        own = gradient[self.parameters.mine] / self.parameters.world
        self.momentum.mul_(self.beta).add_(own)
        updated = self.parameters.flat[self.parameters.mine] - self.lr * self.momentum
        parts = list(self.parameters.flat.chunk(self.parameters.world))
        dist.all_gather(parts, updated)
        self.parameters.flat = torch.cat(parts)


def loop(rank: int, world: int) -> None:
    parameters = FlatParameters([(256, 128), (128,), (128, 64)], world, rank)
    optimizer = ShardedMomentum(parameters)
    for step in range(1_000_000):
        batch = torch.randn(32, 128)
        time.sleep(0.25)  # tokenizing
        optimizer.step(parameters.gradient(batch))
        log.info("rank %d finished step %d", rank, step)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", rank=rank, world_size=world, timeout=timedelta(hours=1))
    loop(rank, world)


if __name__ == "__main__":
    main()
