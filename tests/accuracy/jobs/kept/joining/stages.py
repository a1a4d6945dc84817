"""A model cut in stages, one per rank: activations go down the ranks, gradients come back up."""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

WIDTH, MICRO = 64, 4


class Link:
    """What this stage gets from its neighbours and gives to them."""

    def __init__(self, rank: int, world: int):
        self.above = rank - 1 if rank > 0 else None
        self.below = rank + 1 if rank < world - 1 else None

    def pull_activation(self):
        if self.above is None:
            return torch.randn(8, WIDTH)
        buffer = torch.empty(8, WIDTH)
        dist.recv(buffer, self.above)
        return buffer.requires_grad_()

    def push_activation(self, value):
        if self.below is not None:
            dist.send(value.detach().contiguous(), self.below)

    def pull_gradient(self, like):
        if self.below is None:
            return None
        gradient = torch.empty_like(like)
        dist.recv(gradient, self.below)
        return gradient

    def push_gradient(self, value):
        if self.above is not None:
            dist.send(value.contiguous(), self.above)


class Stage(nn.Module):
    def __init__(self, depth: int = 2):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))

    def forward(self, hidden):
        for block in self.blocks:
            hidden = torch.relu(block(hidden)) + hidden
        return hidden


def forward_backward(stage: Stage, link: Link) -> float:
    """All forwards, then all backwards."""
    kept, total = [], 0.0
    for _ in range(MICRO):
        given = link.pull_activation()
        made = stage(given)
        link.push_activation(made)
        kept.append((given, made))
    for given, made in kept:
        gradient = link.pull_gradient(made)
        if gradient is None:
            loss = made.pow(2).mean()
            loss.backward()
            total += loss.item()
        else:
            made.backward(gradient)
        if given.requires_grad:
            link.push_gradient(given.grad)
    return total / MICRO


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=40))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(17 + rank)
    stage, link = Stage(), Link(rank, world)
    optimizer = torch.optim.SGD(stage.parameters(), lr=1e-3)
    for step in range(100_000):
        optimizer.zero_grad(set_to_none=True)
        loss = forward_backward(stage, link)
        nn.utils.clip_grad_norm_(stage.parameters(), 1.0)
        optimizer.step()
        if rank == 0 or rank == world - 1:
            print(f"stage {rank}: step {step} loss {loss:.4f}", flush=True)
        time.sleep(0.3)  # reading the next batch
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
