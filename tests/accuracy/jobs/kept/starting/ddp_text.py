"""A small language model over two nodes, with DDP and gradient accumulation."""

import math
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

VOCABULARY, WIDTH, LENGTH = 256, 48, 24


class Block(nn.Module):
    """Attention and a feed-forward net."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.net = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, x):
        seen = self.norm(x)
        x = x + self.attention(seen, seen, seen, need_weights=False)[0]
        return x + self.net(self.norm(x))


class Model(nn.Module):
    """Two blocks between embedding and head."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        return self.head(self.blocks(self.embedding(tokens)))


def learning_rate(step, warmup=100, most=3e-4):
    """Linear warm-up, then cosine."""
    if step < warmup:
        return most * (step + 1) / warmup
    return most * 0.5 * (1 + math.cos(min(1.0, (step - warmup) / 10_000) * math.pi))


def connect():
    """Join the job, over the interface that GLOO_SOCKET_IFNAME names."""
    print(f"rank {os.environ['RANK']} connects to {os.environ['MASTER_ADDR']}", flush=True)
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))


def batches(rank):
    """Endless tokens."""
    generator = torch.Generator().manual_seed(rank)
    while True:
        tokens = torch.randint(VOCABULARY, (4, LENGTH + 1), generator=generator)
        yield tokens[:, :-1], tokens[:, 1:]


def main():
    """Train."""
    connect()
    torch.manual_seed(0)
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.AdamW(model.parameters())
    for step, (tokens, targets) in enumerate(batches(dist.get_rank())):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
