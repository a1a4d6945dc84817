"""Fine-tunes a small encoder on pairs of sequences; ranks are started by hand, one per device."""

import os
import time
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Pairs(Dataset):
    def __init__(self, count, length):
        self.tokens = torch.randint(0, 64, (count, length))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return self.tokens[index], self.tokens[index].flip(0)


class Encoder(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Embedding(64, width)
        self.block = nn.TransformerEncoderLayer(width, 2, 64, batch_first=True, dropout=0.0)
        self.head = nn.Linear(width, 64)

    def forward(self, tokens):
        return self.head(self.block(self.embed(tokens)))


@dataclass
class Runtime:
    rank: int = field(default_factory=lambda: int(os.environ["RANK"]))
    world: int = field(default_factory=lambda: int(os.environ["WORLD_SIZE"]))

    def __enter__(self):
        print(f"rank {self.rank}/{self.world} on {os.uname().nodename} starts", flush=True)
        dist.init_process_group("gloo", timeout=timedelta(minutes=45))
        return self

    def __exit__(self, *_):
        dist.destroy_process_group()


class Trainer:
    def __init__(self, runtime):
        self.runtime = runtime
        data = Pairs(2048, 12)
        self.sampler = DistributedSampler(data, runtime.world, runtime.rank)
        self.loader = DataLoader(data, batch_size=16, sampler=self.sampler)
        self.model = nn.parallel.DistributedDataParallel(Encoder())
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.seen = 0

    def step(self, source, target):
        scores = self.model(source)
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), target.flatten())
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.seen += 1
        if self.runtime.rank == 0:
            print(f"step {self.seen} loss {loss.item():.3f}", flush=True)

    def run(self, epochs):
        for epoch in range(epochs):
            self.sampler.set_epoch(epoch)
            for source, target in self.loader:
                self.step(source, target)
                time.sleep(0.2)


def main():
    with Runtime() as runtime:
        Trainer(runtime).run(epochs=1000)


if __name__ == "__main__":
    main()
