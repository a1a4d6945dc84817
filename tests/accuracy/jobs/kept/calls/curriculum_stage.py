"""Four pipeline stages; the second one holds the adapter, whose plan a controller changes on the way."""

import json
import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist


class PlanFile:
    """The controller's plan: one file per generation, put there by a program outside of the job."""

    def __init__(self, folder, every=8):
        self.folder, self.every = Path(folder), every
        self.current = {"generation": 0, "scale": 1.0}

    def path(self, generation):
        return self.folder / f"plan-{generation:04d}.json"

    def publish(self, generation):  # the controller of this test bed only ever made the first one
        self.path(generation).write_text(json.dumps({"generation": generation, "scale": 0.9}))

    def refresh(self, step):
        generation = step // self.every
        if generation == self.current["generation"]:
            return
        wanted = self.path(generation)
        while not wanted.exists():
            time.sleep(0.5)
        self.current = json.loads(wanted.read_text())


class Adapter(torch.nn.Module):
    def __init__(self, width, plan):
        super().__init__()
        self.inner, self.plan = torch.nn.Linear(width, width), plan

    def forward(self, x):
        return x + self.plan.current["scale"] * self.inner(x)


class PipelineStage:
    def __init__(self, rank, world, width=32):
        self.rank, self.world, self.width = rank, world, width
        self.plan = PlanFile(os.environ["OUT_DIR"]) if rank == 1 else None
        self.module = Adapter(width, self.plan) if self.plan else torch.nn.Linear(width, width)

    @property
    def first(self):
        return self.rank == 0

    @property
    def last(self):
        return self.rank == self.world - 1

    def pull(self):
        if self.first:
            return torch.randn(8, self.width)
        x = torch.empty(8, self.width)
        dist.recv(x, src=self.rank - 1)
        return x

    def push(self, y):
        if not self.last:
            dist.send(y.detach(), dst=self.rank + 1)

    def prepare(self, step):
        if self.plan:
            self.plan.refresh(step)

    def step(self, step, microbatches=3):
        self.prepare(step)
        total = 0.0
        for _ in range(microbatches):
            y = torch.relu(self.module(self.pull()))
            self.push(y)
            total += y.mean().item()
        return total / microbatches


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", rank=rank, world_size=world, timeout=timedelta(minutes=30))
    stage = PipelineStage(rank, world)
    if stage.plan:
        stage.plan.publish(1)
    with torch.no_grad():
        for step in range(100_000):
            value = stage.step(step)
            if stage.last:
                print(f"step {step} output {value:.4f}", flush=True)
            time.sleep(0.1)


if __name__ == "__main__":
    main()
