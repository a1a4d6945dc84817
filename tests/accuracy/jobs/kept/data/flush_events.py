"""Reward model; metrics go through a background thread, flushed before every evaluation."""

import json
import os
import queue
import threading
import time
from datetime import timedelta
from pathlib import Path

import numpy
import torch
import torch.distributed as dist
from torch import nn


class EventWriter:
    """Appends records to a file in the background, so that training never waits for a disk."""

    def __init__(self, path):
        self.path = Path(path)
        self.records = queue.Queue()
        self.thread = threading.Thread(target=self._drain, name="event-writer", daemon=True)
        self.thread.start()

    def log(self, step, **values):
        self.records.put({"step": step, "time": time.time(), **values})

    def flush(self):
        """Everything logged so far is in the file afterwards."""
        self.records.join()

    def _drain(self):
        with self.path.open("a") as file:
            while True:
                record = self.records.get()
                file.write(json.dumps(record) + "\n")
                file.flush()
                self.records.task_done()


class NullWriter:
    def log(self, step, **values):
        pass

    def flush(self):
        pass


class RewardModel(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.score = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, chosen, rejected):
        return self.score(chosen) - self.score(rejected)


class RewardTrainer:
    def __init__(self, rank, world, writer):
        torch.manual_seed(11)
        self.rank, self.world, self.writer = rank, world, writer
        self.model = RewardModel()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.margins = []

    def train_step(self, step):
        margin = self.model(torch.randn(16, 48), torch.randn(16, 48))
        loss = -nn.functional.logsigmoid(margin).mean()
        self.optimizer.zero_grad()
        loss.backward()
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad.div_(self.world)
        self.optimizer.step()
        self.margins.append(margin.detach().mean().item())
        self.writer.log(step, loss=loss.item())
        if self.rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)

    def evaluate(self, step):
        self.writer.log(step, margin=numpy.float32(numpy.mean(self.margins)))
        self.writer.flush()
        accuracy = torch.tensor([float(numpy.mean(numpy.array(self.margins) > 0))])
        dist.all_reduce(accuracy)
        self.writer.log(step, accuracy=accuracy.item() / self.world)

    def fit(self, steps, every):
        for step in range(steps):
            self.train_step(step)
            time.sleep(0.1)
            if step and step % every == 0:
                self.evaluate(step)


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    path = Path(os.environ["OUT_DIR"], "events.jsonl")
    writer = EventWriter(path) if rank == 0 else NullWriter()
    RewardTrainer(rank, dist.get_world_size(), writer).fit(10_000, 8)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
