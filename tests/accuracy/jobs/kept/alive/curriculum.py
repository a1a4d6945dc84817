"""Pretraining with a sequence length curriculum and token budgets: long steps, each another length.

Every rank packs documents into micro-batches until the step's share of time is used up (the nodes
are not equally fast), all but the last one under no_sync().
"""

import contextlib
import datetime
import os
import random
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


@dataclass
class Plan:
    """What a step has to take in."""

    seconds: float
    length: int


class Curriculum:
    """Longer sequences and larger batches as training goes on; the same on every rank."""

    lengths = (128, 256, 384, 512)

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def plan(self, step: int) -> Plan:
        """The first steps warm up; then 5 to 20 seconds each."""
        if step < 3:
            return Plan(0.5, self.lengths[0])
        return Plan(self.random.uniform(5.0, 20.0), self.random.choice(self.lengths))


class Model(nn.Module):
    """A small causal language model."""

    def __init__(self, vocabulary: int = 512, width: int = 128) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Loss of the next token."""
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1] - 1)
        hidden = self.blocks(self.embed(tokens[:, :-1]), mask=mask, is_causal=True)
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), tokens[:, 1:].flatten())


class Packer:
    """Packs random documents into a micro-batch of one length."""

    def __init__(self, rank: int) -> None:
        self.generator = torch.Generator().manual_seed(rank)

    def micro_batch(self, length: int) -> torch.Tensor:
        """Tokens of one micro-batch."""
        return torch.randint(0, 512, (2, length), generator=self.generator)


class Trainer:
    """Accumulates gradients, and exchanges them once a step."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.model = DistributedDataParallel(Model())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)
        self.packer = Packer(rank)

    def accumulate(self, plan: Plan) -> int:
        """Forward and backward until the time is up; slower nodes are given a smaller share."""
        share = (1.0, 0.6, 0.85, 0.7)[self.rank % 4]
        until = time.monotonic() + share * plan.seconds
        count = 0
        while True:
            last = time.monotonic() >= until
            with contextlib.nullcontext() if last else self.model.no_sync():
                self.model(self.packer.micro_batch(plan.length)).backward()
            count += 1
            if last:
                return count

    def step(self, number: int, plan: Plan) -> None:
        """One optimizer step."""
        began = time.monotonic()
        count = self.accumulate(plan)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.rank == 0:
            took = time.monotonic() - began
            print(f"step {number} | {count} micro-batches | {took:.1f} s", flush=True)


def main() -> None:
    """Train."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
    trainer = Trainer(int(os.environ["RANK"]))
    curriculum = Curriculum(17)
    for number in range(2000):
        trainer.step(number, curriculum.plan(number))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
