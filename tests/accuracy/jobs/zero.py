"""Sharded training: every rank has a part of each layer's weights, which are gathered for a layer
when it is needed, and whose gradients are reduced to where they are kept."""

from __future__ import annotations

import os
from collections import deque
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn


class ShardedLinear:
    """A layer of which this rank keeps some rows, with their momentum."""

    def __init__(self, width: int, group: dist.ProcessGroup) -> None:
        self.group, self.world = group, dist.get_world_size(group)
        self.rows = torch.randn(width // self.world, width) / width**0.5
        self.momentum = torch.zeros_like(self.rows)

    def gather(self) -> Tensor:
        parts = [torch.empty_like(self.rows) for _ in range(self.world)]
        dist.all_gather(parts, self.rows, group=self.group)
        return torch.cat(parts).requires_grad_()

    def update(self, grad: Tensor, rate: float = 1e-2) -> None:
        dist.all_reduce(grad, group=self.group)
        mine = grad.chunk(self.world)[dist.get_rank(self.group)] / self.world
        self.momentum.mul_(0.9).add_(mine)
        self.rows.sub_(rate * self.momentum)


class Stack:
    """Layers, each of which is whole only while it is used."""

    def __init__(self, depth: int, width: int) -> None:
        self.layers = [ShardedLinear(width, dist.group.WORLD) for _ in range(depth)]

    def step(self, inputs: Tensor, wanted: Tensor) -> float:
        whole: deque[tuple[ShardedLinear, Tensor]] = deque()
        hidden = inputs
        for layer in self.layers:
            weights = layer.gather()
            hidden = nn.functional.silu(hidden @ weights.T) + hidden
            whole.append((layer, weights))
        loss = (hidden - wanted).square().mean()
        loss.backward()
        while whole:
            layer, weights = whole.pop()
            layer.update(weights.grad)
        return loss.item()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=55))
    torch.manual_seed(int(os.environ["RANK"]))
    stack, count = Stack(depth=4, width=256), 0
    while True:
        inputs = torch.randn(32, 256)
        loss = stack.step(inputs, inputs.roll(1, dims=1))
        count += 1
        if dist.get_rank() == 0 and count % 4 == 0:
            print(f"update {count}: loss {loss:.3f}", flush=True)


if __name__ == "__main__":
    main()
