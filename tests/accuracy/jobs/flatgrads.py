"""Data parallel training without DDP: gradients go through flat buffers of so many bytes, in the
precision that the run's settings have for this host.

flatgrads.py --bf16-rank RANK --bf16-from STEP   # a host that a new setting has reached
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass
class Settings:
    bf16_rank: int
    bf16_from: int
    buffer_bytes: int = 16384

    def wire(self, step: int) -> torch.dtype:
        mine = dist.get_rank() == self.bf16_rank and step >= self.bf16_from
        return torch.bfloat16 if mine else torch.float32


class FlatReducer:
    """Averages gradients in buffers, the last of which is filled up with zeros."""

    def __init__(self, module: nn.Module, settings: Settings) -> None:
        self.weights, self.settings = list(module.parameters()), settings

    def chunks(self, flat: Tensor) -> Iterator[Tensor]:
        size = self.settings.buffer_bytes // flat.element_size()
        padded = nn.functional.pad(flat, (0, -len(flat) % size))
        yield from padded.split(size)

    def reduce(self, step: int) -> None:
        grads = [weight.grad.flatten() for weight in self.weights]
        flat = torch.cat(grads).to(self.settings.wire(step)) / dist.get_world_size()
        done = []
        for chunk in self.chunks(flat):
            buffer = chunk.clone()
            dist.all_reduce(buffer)
            done.append(buffer)
        self.scatter_back(torch.cat(done).float())

    def scatter_back(self, flat: Tensor) -> None:
        offset = 0
        for weight in self.weights:
            weight.grad.copy_(flat[offset : offset + weight.numel()].view_as(weight))
            offset += weight.numel()


class Epoch:
    def __init__(self, module: nn.Module, settings: Settings) -> None:
        self.module, self.reducer = module, FlatReducer(module, settings)
        self.optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)

    def step(self, number: int) -> float:
        inputs = torch.randn(8, 64)
        loss = (self.module(inputs) - inputs.flip(1)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.reducer.reduce(number)
        self.optimizer.step()
        dist.barrier()  # checkpoints are taken between steps
        return loss.item()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bf16-rank", type=int, default=-1)
    parser.add_argument("--bf16-from", type=int, default=0)
    settings = Settings(**vars(parser.parse_args()))
    torch.set_num_threads(1)
    torch.manual_seed(3)
    dist.init_process_group("gloo", timeout=timedelta(minutes=50))
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    epoch = Epoch(model, settings)
    for number in range(10**6):
        loss = epoch.step(number)
        if dist.get_rank() == 0:
            print(f"step {number} loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
