"""What runs in a pod: joins the others, then trains a small language model."""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks


class Language(nn.Module):
    def __init__(self, words: int = 128, width: int = 32):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.cell = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, words)

    def forward(self, words):
        hidden, _ = self.cell(self.embedding(words))
        return self.out(hidden)


def join() -> None:
    rank, world = os.environ["RANK"], os.environ["WORLD_SIZE"]
    print(f"worker {rank} of {world} waits for the others", flush=True)
    dist.init_process_group("gloo", init_method="env://", timeout=timedelta(minutes=30))
    print(f"worker {rank} has joined", flush=True)


def build() -> nn.Module:
    model = nn.parallel.DistributedDataParallel(Language())
    model.register_comm_hook(None, default_hooks.allreduce_hook)
    return model


def main() -> None:
    join()
    model = build()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(100_000):
        words = torch.randint(0, 128, (4, 17))
        logits = model(words[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step} perplexity {loss.exp().item():.1f}", flush=True)
        time.sleep(0.5)


if __name__ == "__main__":
    main()
