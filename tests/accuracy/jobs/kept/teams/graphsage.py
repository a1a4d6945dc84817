"""GraphSAGE over a partitioned graph: each rank samples around the seed nodes of its partition."""

import argparse
import time
from datetime import timedelta
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Block(NamedTuple):
    seeds: torch.Tensor
    neighbours: torch.Tensor
    labels: torch.Tensor


class Partition:
    """Nodes of one part, as METIS cut the graph: parts are never quite equal."""

    SIZES = (980, 1004, 612, 960)

    def __init__(self, part: int, fanout: int = 5):
        rng = np.random.default_rng(part)
        self.nodes = self.SIZES[part]
        self.features = rng.normal(size=(self.nodes, 24)).astype(np.float32)
        self.edges = rng.integers(0, self.nodes, (self.nodes, fanout))
        self.labels = rng.integers(0, 4, self.nodes)
        self.train = np.arange(self.nodes)[: int(self.nodes * 0.8)]

    def sample(self, seeds: np.ndarray) -> Block:
        time.sleep(0.15)
        return Block(
            torch.from_numpy(self.features[seeds]),
            torch.from_numpy(self.features[self.edges[seeds]]),
            torch.from_numpy(self.labels[seeds]),
        )


class NeighborLoader:
    def __init__(self, part: Partition, batch: int):
        self.part, self.batch = part, batch

    def __len__(self):
        return -(-len(self.part.train) // self.batch)

    def __iter__(self):
        order = np.random.permutation(self.part.train)
        for begin in range(0, len(order), self.batch):
            yield self.part.sample(order[begin : begin + self.batch])


class SAGE(nn.Module):
    def __init__(self, width=24, hidden=32, classes=4):
        super().__init__()
        self.own, self.agg = nn.Linear(width, hidden), nn.Linear(width, hidden)
        self.out = nn.Linear(hidden, classes)

    def forward(self, block: Block):
        return self.out(F.relu(self.own(block.seeds) + self.agg(block.neighbours.mean(1))))


@torch.no_grad()
def validate(model: DDP, part: Partition) -> float:
    held_out = np.arange(part.nodes)[len(part.train) :]
    block = part.sample(held_out)
    hits = (model.module(block).argmax(1) == block.labels).sum().item()
    everywhere: list = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, (hits, len(held_out)))
    return sum(h for h, _ in everywhere) / sum(n for _, n in everywhere)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=48)
    parser.add_argument("--epochs", type=int, default=50)
    args = parser.parse_args()
    dist.init_process_group("gloo", timeout=timedelta(minutes=40))
    part = Partition(dist.get_rank())
    loader, model = NeighborLoader(part, args.batch_size), DDP(SAGE())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(args.epochs):
        model.train()
        for step, block in enumerate(loader):
            loss = F.cross_entropy(model(block), block.labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if dist.get_rank() == 0:
                print(f"epoch {epoch} step {step}/{len(loader)} loss {loss.item():.3f}", flush=True)
        print(f"epoch {epoch} accuracy {validate(model, part):.3f}", flush=True)


if __name__ == "__main__":
    main()
