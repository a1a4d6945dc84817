"""Evaluation of a checkpoint over two nodes: ranks take the next batch by a cursor in the store.

Fast ranks take more; every twenty batches all of them add their counts up.
"""

import time
from collections import Counter
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

PER_ROUND = 20


class Cursor:
    """Numbers that are given out once each."""

    def __init__(self, store, name):
        self.store, self.name = store, name

    def take(self):
        """The next number of the whole job."""
        return self.store.add(f"{self.name}/next", 1) - 1


class Evaluator:
    """Counts right answers of a classifier."""

    def __init__(self, cursor, size):
        self.cursor, self.size = cursor, size
        self.model = torch.nn.Linear(24, 5)
        self.counts = Counter()

    def batch(self, number):
        """Inputs and labels of a batch."""
        generator = torch.Generator().manual_seed(number)
        return (
            torch.randn(self.size, 24, generator=generator),
            torch.randint(5, (self.size,), generator=generator),
        )

    @torch.no_grad()
    def round(self):
        """As many batches as belong to a round."""
        for _ in range(PER_ROUND):
            inputs, labels = self.batch(self.cursor.take())
            right = (self.model(inputs).argmax(1) == labels).sum().item()
            self.counts.update(right=right, seen=self.size)
            time.sleep(0.02)  # decoding

    def total(self):
        """Counts of all ranks."""
        counts = torch.tensor([self.counts["right"], self.counts["seen"]], dtype=torch.float64)
        dist.all_reduce(counts)
        return counts.tolist()


def main():
    """Evaluate in rounds."""
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    store = dist.PrefixStore("eval", distributed_c10d._get_default_store())
    evaluator = Evaluator(Cursor(store, "validation"), size=64)
    number = 0
    while True:
        evaluator.round()
        right, seen = evaluator.total()
        if dist.get_rank() == 0:
            print(f"round {number}: {right:.0f} of {seen:.0f} right", flush=True)
        number += 1


if __name__ == "__main__":
    main()
