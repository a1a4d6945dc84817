"""Checkpoints are written behind the back of training, by a thread; the next one waits for it."""

import gzip
import os
import pickle
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch import nn

EVERY = 12


class Behind:
    """Writes in a thread of its own what it was given; one at a time."""

    def __init__(self, folder):
        self.folder = folder
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self.last = None

    def submit(self, step, state):
        if self.last is not None:
            print(f"step {step}: waits for the one before", flush=True)
            self.last.result()
        copy = {name: value.clone() for name, value in state.items()}
        self.last = self.pool.submit(self.write, step, copy)

    def write(self, step, state):
        """One file for each tensor, and a list of them."""
        folder = os.path.join(self.folder, f"checkpoint-{step}")
        os.makedirs(folder, exist_ok=True)
        for name, value in state.items():
            with gzip.open(os.path.join(folder, f"{name}.pt.gz"), "wb", compresslevel=9) as file:
                torch.save(value, file)
        with open(os.path.join(folder, "index.pkl"), "wb") as file:
            pickle.dump(sorted(state), file)


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(60_000, 64, mode="sum") for _ in range(24))
        self.top = nn.Linear(24 * 64, 1)

    def forward(self, bags):
        found = [table(bag) for table, bag in zip(self.tables, bags.unbind(1), strict=True)]
        return self.top(torch.cat(found, dim=1)).squeeze(1)


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Recommender()
    behind = Behind(os.environ["OUT_DIR"])
    optimizer = torch.optim.SGD(model.top.parameters(), lr=0.05)
    for step in range(1, 10**9):
        bags = torch.randint(0, 60_000, (8, 24, 5))
        loss = nn.functional.mse_loss(model(bags), torch.rand(8))
        optimizer.zero_grad()
        loss.backward()
        for weight in model.top.parameters():
            dist.all_reduce(weight.grad)
        optimizer.step()
        if dist.get_rank() == 0:
            if step % EVERY == 0:
                behind.submit(step, model.state_dict())
            print(f"step {step}", flush=True)


if __name__ == "__main__":
    main()
