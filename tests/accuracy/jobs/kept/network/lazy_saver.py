"""Pretraining with an asynchronous checkpointer that opens its own gloo group when first used.

The last rank only scores held-out text; it keeps no part of the model to save.
"""

import os
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

TIMEOUT = timedelta(minutes=40)


class AsyncSaver:
    """Copies the state, and writes it in a thread; the ranks agree on the plan beforehand."""

    def __init__(self, folder, writers):
        self.folder, self.writers = folder, writers
        self.group = None
        self.thread = None

    @property
    def takes_part(self):
        return dist.get_rank() in self.writers

    def plan(self, state):
        if self.group is None:
            self.group = dist.new_group(backend="gloo", timeout=TIMEOUT)
        sizes = [torch.zeros(1, dtype=torch.long) for _ in range(dist.get_world_size())]
        mine = torch.tensor([sum(value.numel() for value in state.values())])
        dist.all_gather(sizes, mine, group=self.group)
        return [int(size) for size in sizes]

    def save(self, step, state):
        if not self.takes_part:
            return
        if self.thread is not None:
            self.thread.join()
        plan = self.plan(state)
        copy = {name: value.clone() for name, value in state.items()}
        path = os.path.join(self.folder, f"part{dist.get_rank()}.pt")
        self.thread = threading.Thread(target=torch.save, args=({**copy, "plan": plan}, path))
        self.thread.start()


class Scorer:
    """What the last rank does with the weights of the others."""

    def __init__(self):
        self.history = []

    def __call__(self, weights):
        self.history.append(weights.square().mean().item())


class Pretraining:
    def __init__(self, folder):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.scores = self.rank == self.world - 1
        self.weights = torch.randn(400, generator=torch.Generator().manual_seed(1))
        self.saver = AsyncSaver(folder, writers=list(range(self.world - 1)))
        self.scorer = Scorer()

    def contribution(self):
        if self.scores:
            return torch.zeros_like(self.weights)
        return -0.01 * self.weights + 0.001 * torch.randn(400)

    def share(self, delta):
        work = dist.all_reduce(delta, async_op=True)
        work.wait()
        return delta

    def iterate(self, step):
        self.weights += self.share(self.contribution())
        if self.scores:
            self.scorer(self.weights)
        if self.rank == 0:
            print(f"step {step} norm {self.weights.norm().item():.3f}", flush=True)
        if step % 10 == 9:
            self.saver.save(step, {"weights": self.weights})


def main():
    dist.init_process_group("gloo", timeout=TIMEOUT)
    job = Pretraining(os.environ.get("OUT_DIR", "/tmp"))
    for step in range(100_000):
        job.iterate(step)
        time.sleep(0.2)


if __name__ == "__main__":
    main()
