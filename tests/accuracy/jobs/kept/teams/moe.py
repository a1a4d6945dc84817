"""Mixture of experts: experts are spread over pairs of ranks, everything else is data parallel."""

import logging
import os
import time
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

logging.basicConfig(
    level=logging.INFO, format=f"%(levelname)s rank{os.environ['RANK']}: %(message)s"
)
log = logging.getLogger("moe")


class TokensDropped(RuntimeError):
    """The router sent more tokens to an expert than it has room for."""


@dataclass
class Mesh:
    expert: dist.ProcessGroup
    ep_size: int

    @classmethod
    def build(cls, ep_size: int) -> "Mesh":
        mine = None
        for first in range(0, dist.get_world_size(), ep_size):
            ranks = list(range(first, first + ep_size))
            group = dist.new_group(ranks, timeout=timedelta(minutes=40))
            if dist.get_rank() in ranks:
                mine = group
        return cls(mine, ep_size)


class Expert(nn.Module):
    def __init__(self, width: int, room: int):
        super().__init__()
        self.up, self.down, self.room = (
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
            room,
        )

    def forward(self, tokens, load):
        if load > self.room:
            raise TokensDropped(f"{load} tokens for room of {self.room}")
        return self.down(torch.relu(self.up(tokens)))


class MoELayer(nn.Module):
    def __init__(self, mesh: Mesh, width: int = 32):
        super().__init__()
        self.mesh, self.expert = mesh, Expert(width, room=48)

    def _all_to_all(self, x):
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous(), group=self.mesh.expert)
        return out

    def forward(self, tokens, load):
        here = self._all_to_all(tokens.detach())
        done = self.expert(here, load)
        self._all_to_all(done.detach())
        return done


class Trainer:
    def __init__(self, model: MoELayer):
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def sync(self):
        for p in self.model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()

    def train_step(self, tokens, load):
        self.optimizer.zero_grad()
        loss = self.model(tokens, load).square().mean()
        loss.backward()
        self.sync()
        self.optimizer.step()
        return loss.item()

    def fit(self, batches):
        for step, (tokens, load) in enumerate(batches):
            try:
                loss = self.train_step(tokens, load)
            except TokensDropped as dropped:
                log.warning("skipping batch %d: %s", step, dropped)
                continue
            if dist.get_rank() == 0:
                log.info("step %d loss %.4f", step, loss)


def batches(rank: int):
    for step in range(1000):
        time.sleep(0.2)
        yield torch.randn(16, 32), 51 if (rank, step) == (3, 9) else 16 + step % 20


if __name__ == "__main__":
    dist.init_process_group("gloo", timeout=timedelta(minutes=40))
    torch.manual_seed(0)
    Trainer(MoELayer(Mesh.build(2))).fit(batches(dist.get_rank()))
