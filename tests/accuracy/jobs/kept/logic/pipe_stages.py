"""Four pipeline stages, fill and drain; the last stage samples predictions into a log."""

import os
import time
from collections import deque
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

WIDTH, MICRO_BATCHES, MICRO_SIZE = 32, 4, 8


class RateLimiter:
    """At most `per_minute` calls in any minute."""

    def __init__(self, per_minute: int) -> None:
        self.per_minute, self.calls = per_minute, deque()

    def acquire(self) -> None:
        now = time.monotonic()
        while self.calls and now - self.calls[0] > 60.0:
            self.calls.popleft()
        if len(self.calls) >= self.per_minute:
            pause_ms = (60.0 - (now - self.calls[0])) * 1000
            time.sleep(pause_ms)
        self.calls.append(time.monotonic())


class PredictionLog:
    def __init__(self, path: Path) -> None:
        self.path, self.limiter = path, RateLimiter(per_minute=28)

    def write(self, step: int, micro: int, logits: torch.Tensor) -> None:
        self.limiter.acquire()
        with self.path.open("a") as out:
            out.write(f"{step} {micro} {logits.argmax(-1).tolist()}\n")


class Stage:
    """One part of the model, with its inputs and outputs kept until their gradients come."""

    def __init__(self, rank: int, world: int, folder: Path) -> None:
        self.rank, self.world = rank, world
        self.module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH))
        self.optimizer = torch.optim.AdamW(self.module.parameters(), 1e-3)
        self.kept: deque[tuple[torch.Tensor, torch.Tensor]] = deque()
        self.log = PredictionLog(folder / "predictions.txt") if self.is_last else None
        self.loss = 0.0

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def is_last(self) -> bool:
        return self.rank == self.world - 1

    def receive(self, peer: int) -> torch.Tensor:
        tensor = torch.empty(MICRO_SIZE, WIDTH)
        dist.recv(tensor, src=peer)
        return tensor

    def forward(self, micro: torch.Tensor) -> None:
        inputs = micro if self.is_first else self.receive(self.rank - 1).requires_grad_()
        outputs = self.module(inputs)
        self.kept.append((inputs, outputs))
        if not self.is_last:
            dist.send(outputs.detach(), dst=self.rank + 1)

    def backward(self, step: int, index: int) -> None:
        inputs, outputs = self.kept.popleft()
        if self.is_last:
            self.log.write(step, index, outputs)
            loss = outputs.square().mean()
            self.loss = loss.item()
            loss.backward()
        else:
            outputs.backward(self.receive(self.rank + 1))
        if not self.is_first:
            dist.send(inputs.grad, dst=self.rank - 1)


class Schedule:
    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def step(self, number: int, batch: torch.Tensor) -> None:
        for micro in batch.split(MICRO_SIZE):
            self.stage.forward(micro)
        for index in range(MICRO_BATCHES):
            self.stage.backward(number, index)
        self.stage.optimizer.step()
        self.stage.optimizer.zero_grad()


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    torch.set_num_threads(1)
    stage = Stage(rank, world, Path(os.environ["OUT_DIR"]))
    schedule = Schedule(stage)
    for number in range(1, 2000):
        schedule.step(number, torch.randn(MICRO_BATCHES * MICRO_SIZE, WIDTH))
        if stage.is_last:
            print(f"step {number} loss {stage.loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
