"""A recommender on two nodes: an embedding that all share, trained by DistributedDataParallel."""

import os
import sys
import threading
import time
from collections import deque

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Recommender(torch.nn.Module):
    def __init__(self, items=500, width=16):
        super().__init__()
        self.items = torch.nn.EmbeddingBag(items, width, mode="mean")
        self.score = torch.nn.Linear(width, 1)

    def forward(self, baskets):
        return self.score(self.items(baskets)).squeeze(1)


class Reporter:
    """Hands figures to a thread that is told when there are any."""

    def __init__(self):
        self.figures, self.changed, self.taken = deque(), threading.Condition(), 0
        threading.Thread(target=self.work, name="reporter", daemon=True).start()

    def work(self):
        with self.changed:
            while True:
                while not self.figures:
                    self.changed.wait()
                self.figures.popleft()
                self.taken += 1

    def report(self, figure):
        with self.changed:
            self.figures.append(figure)
            self.changed.notify()

    def flush(self):
        """Wait until nothing is left; nobody ever tells that it is so."""
        with self.changed:
            while self.taken < 10**6:
                self.changed.wait()


def main():
    case = sys.argv[1] if len(sys.argv) > 1 else ""
    print("on", os.uname().nodename, "rank", os.environ["RANK"], "joins", flush=True)
    dist.init_process_group("gloo")
    print("connected", flush=True)
    torch.set_num_threads(1)
    model = DistributedDataParallel(Recommender())
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    reporter = Reporter()
    for step in range(10**9):
        baskets = torch.randint(0, 500, (8, 5))
        loss = torch.nn.functional.mse_loss(model(baskets), torch.rand(8))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        reporter.report(loss.item())
        if case == "flush" and step == 5 and dist.get_rank() == 3:
            reporter.flush()
        if dist.get_rank() == 0:
            print(f"step {step}", flush=True)
        time.sleep(0.05)


main()
