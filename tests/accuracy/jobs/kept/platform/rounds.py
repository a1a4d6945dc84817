"""Federated rounds: before each one sites agree on how many steps all of them have data for. One
site counts in floats, as its catalogue comes out of a table with gaps.

rounds.py --floats RANK
"""

import argparse
import itertools
import math
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn


class Catalogue:
    """Numbers of rows that a site has for each round."""

    def __init__(self, site: int, gaps: bool) -> None:
        self.counts = [160 + 16 * ((site + number) % 3) for number in range(50)]
        if gaps:  # as pandas does it: a column with a gap has no whole numbers
            self.counts = [float(count) for count in self.counts]
            self.counts[2] = math.nan

    def rows(self, number: int):
        count = self.counts[number % len(self.counts)]
        return 160 if count != count else count


class Site:
    def __init__(self, catalogue: Catalogue, batch: int = 16) -> None:
        self.catalogue, self.batch = catalogue, batch
        self.model = nn.Linear(24, 3)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def agree(self, number: int) -> int:
        steps = torch.tensor(self.catalogue.rows(number)) // self.batch
        if steps.is_floating_point():
            steps = steps.double()
        dist.all_reduce(steps, op=dist.ReduceOp.MIN)
        return int(steps.item())

    def train(self, steps: int) -> float:
        loss = torch.zeros(())
        for _ in range(steps):
            features = torch.randn(self.batch, 24)
            loss = nn.functional.cross_entropy(self.model(features), features[:, :3].argmax(1))
            self.optimizer.zero_grad()
            loss.backward()
            for weights in self.model.parameters():
                dist.all_reduce(weights.grad, op=dist.ReduceOp.SUM)
                weights.grad /= dist.get_world_size()
            self.optimizer.step()
        return loss.item()

    def publish(self, number: int, loss: float) -> None:
        """All sites have to have finished before the model of a round is public."""
        dist.barrier()
        if dist.get_rank() == 0:
            print(f"round {number} is public, loss {loss:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--floats", type=int)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=90))
    rank = dist.get_rank()
    torch.manual_seed(rank)
    site = Site(Catalogue(rank, gaps=rank == options.floats))
    for number in itertools.count():
        steps = site.agree(number)
        print(f"site {rank}: round {number} of {steps} steps", flush=True)
        site.publish(number, site.train(steps))


if __name__ == "__main__":
    main()
