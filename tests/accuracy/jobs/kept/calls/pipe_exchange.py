"""Pipeline of three stages with a hand-written one-forward-one-backward schedule."""

import os
import time
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist

WIDTH, ROWS = 64, 16


@dataclass
class Channel:
    """Blocking sends and receives to the neighbour stages."""

    stage: int
    stages: int

    def send_activation(self, x):
        if self.stage < self.stages - 1:
            dist.send(x.detach(), self.stage + 1)

    def recv_activation(self):
        if self.stage == 0:
            return torch.randn(ROWS, WIDTH)
        x = torch.empty(ROWS, WIDTH)
        dist.recv(x, self.stage - 1)
        return x.requires_grad_()

    def send_gradient(self, grad):
        if self.stage > 0:
            dist.send(grad, self.stage - 1)

    def recv_gradient(self):
        grad = torch.empty(ROWS, WIDTH)
        dist.recv(grad, self.stage + 1)
        return grad


@dataclass
class Stage:
    channel: Channel
    module: torch.nn.Module
    alive: list = field(default_factory=list)

    def forward(self):
        x = self.channel.recv_activation()
        y = self.module(x)
        self.alive.append((x, y))
        self.channel.send_activation(y)

    def backward(self):
        x, y = self.alive.pop(0)
        if self.channel.stage == self.channel.stages - 1:
            y.square().mean().backward()
        else:
            y.backward(self.channel.recv_gradient())
        self.channel.send_gradient(x.grad)


class Schedule:
    """Warm-up forwards, then forward and backward by turns, then what is left of the backwards."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def run(self, microbatches: int) -> None:
        channel = self.stage.channel
        ahead = min(channel.stages - channel.stage - 1, microbatches)
        for _ in range(ahead):
            self.stage.forward()
        for _ in range(microbatches - ahead):
            self.stage.forward()
            self.stage.backward()
        for _ in range(ahead):
            self.stage.backward()


class FillDrain(Schedule):
    """All forwards, then all backwards."""

    def run(self, microbatches: int) -> None:
        for _ in range(microbatches):
            self.stage.forward()
        for _ in range(microbatches):
            self.stage.backward()


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = int(os.environ["RANK"])
    torch.manual_seed(rank)
    stage = Stage(
        Channel(rank, dist.get_world_size()),
        torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()),
    )
    optimizer = torch.optim.SGD(stage.module.parameters(), lr=0.01)
    for step in range(100_000):
        # the memory-saving schedule takes over when the batch has been warmed up to its full size
        schedule, microbatches = (FillDrain, 2) if step < 7 else (Schedule, 6)
        print(f"stage {rank} step {step} {schedule.__name__} x{microbatches}", flush=True)
        schedule(stage).run(microbatches)
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.2)


if __name__ == "__main__":
    main()
