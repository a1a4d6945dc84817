"""PPO with a learner and rollout ranks whose longest answers take minutes; sampling is by token."""

import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn


class TinyLM(nn.Module):
    """A recurrent policy with a value head."""

    def __init__(self, vocab: int = 32, dim: int = 16) -> None:
        super().__init__()
        self.embed, self.cell, self.out = (
            nn.Embedding(vocab, dim),
            nn.GRUCell(dim, dim),
            nn.Linear(dim, vocab),
        )

    @torch.no_grad()
    def generate(self, prompt: int, limit: int, progress) -> list[int]:
        tokens, hidden = [prompt], torch.zeros(1, 16)
        while len(tokens) < limit:
            hidden = self.cell(self.embed(torch.tensor(tokens[-1:])), hidden)
            logits = self.out(hidden)
            tokens.append(int(torch.multinomial(logits.softmax(-1), 1)))
            time.sleep(0.01)  # what a forward pass of the real one takes
            progress.tick()
        return tokens


class Progress:
    """A bar for logs: a line from time to time."""

    def __init__(self, name: str, every: float = 12.0) -> None:
        self.name, self.every, self.tokens, self.last = name, every, 0, time.monotonic()

    def tick(self) -> None:
        self.tokens += 1
        now = time.monotonic()
        if now - self.last > self.every:
            print(f"{self.name}: generating, {self.tokens} tokens", file=sys.stderr, flush=True)
            self.last = now


class Rollout:
    def __init__(self, rank: int) -> None:
        self.rank, self.lm = rank, TinyLM()

    def lengths(self, iteration: int) -> list[int]:
        if iteration < 4:
            return [4, 6]
        return [20, 40] if self.rank == 1 else [40, 60_000]

    def collect(self, iteration: int) -> list[list[int]]:
        bar = Progress(f"rollout {self.rank}")
        return [self.lm.generate(1, n, bar) for n in self.lengths(iteration)]


def learner(iterations: int) -> None:
    for iteration in range(1, iterations):
        print(f"iteration {iteration}: waiting for rollouts", flush=True)
        inbox: list = [None] * dist.get_world_size()
        dist.gather_object(None, inbox, dst=0)
        tokens = sum(len(t) for one in inbox[1:] for t in one)
        box = [tokens]
        dist.broadcast_object_list(box, src=0)
        print(f"iteration {iteration}: {tokens} tokens", flush=True)


def rollouts(rank: int, iterations: int) -> None:
    worker = Rollout(rank)
    for iteration in range(1, iterations):
        dist.gather_object(worker.collect(iteration), None, dst=0)
        box = [None]
        dist.broadcast_object_list(box, src=0)


if __name__ == "__main__":
    dist.init_process_group("gloo", timeout=timedelta(hours=2))
    rank = dist.get_rank()
    learner(100) if rank == 0 else rollouts(rank, 100)
