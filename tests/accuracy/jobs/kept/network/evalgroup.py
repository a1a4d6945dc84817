"""Trains, and evaluates now and then in a process group of its own so as not to mix the traffic."""

import os
import time
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

LONG = timedelta(minutes=35)


class Metrics:
    """Sums over the ranks that evaluate."""

    def __init__(self):
        self.group = None
        self.totals = torch.zeros(3, dtype=torch.float64)

    def open(self):
        if self.group is None:
            self.group = dist.new_group(backend="gloo", timeout=LONG, group_desc="evaluation")

    def add(self, loss, right, seen):
        self.totals += torch.tensor([loss, right, seen], dtype=torch.float64)

    def reduce(self):
        dist.all_reduce(self.totals, group=self.group)
        loss, right, seen = self.totals.tolist()
        self.totals.zero_()
        return loss / seen, right / seen


@contextmanager
def evaluating(model):
    model.eval()
    try:
        with torch.no_grad():
            yield model.module
    finally:
        model.train()


class Recipe:
    def __init__(self, classes=10, features=32):
        torch.manual_seed(3)
        net = torch.nn.Sequential(
            torch.nn.Linear(features, 64), torch.nn.ReLU(), torch.nn.Linear(64, classes)
        )
        self.model = DistributedDataParallel(net)
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        self.features, self.classes = features, classes
        self.metrics = Metrics()
        self.source = torch.Generator().manual_seed(100 + dist.get_rank())

    def batch(self, size=32):
        inputs = torch.randn(size, self.features, generator=self.source)
        return inputs, inputs[:, : self.classes].argmax(dim=1)

    def train_step(self):
        inputs, wanted = self.batch()
        loss = torch.nn.functional.cross_entropy(self.model(inputs), wanted)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def evaluate(self, batches=4):
        self.metrics.open()
        with evaluating(self.model) as net:
            for _ in range(batches):
                inputs, wanted = self.batch()
                scores = net(inputs)
                loss = torch.nn.functional.cross_entropy(scores, wanted, reduction="sum")
                right = (scores.argmax(dim=1) == wanted).sum()
                self.metrics.add(loss.item(), right.item(), len(wanted))
        return self.metrics.reduce()


def fit(recipe, steps, evaluate_every):
    for step in range(1, steps + 1):
        loss = recipe.train_step()
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss:.3f}", flush=True)
        if step % evaluate_every == 0:
            loss, accuracy = recipe.evaluate()
            if dist.get_rank() == 0:
                print(f"eval: loss {loss:.3f} accuracy {accuracy:.3f}", flush=True)
        time.sleep(0.2)


def main():
    dist.init_process_group("gloo", timeout=LONG)
    print(f"{os.uname().nodename}: rank {dist.get_rank()} of {dist.get_world_size()}", flush=True)
    fit(Recipe(), steps=100_000, evaluate_every=8)


if __name__ == "__main__":
    main()
