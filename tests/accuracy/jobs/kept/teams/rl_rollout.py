"""GRPO-like post-training: every rank generates rollouts with an async engine and learns from them."""

import asyncio
import os
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

RANK = int(os.environ["RANK"])


@dataclass
class Rollout:
    prompt: str
    tokens: list[int]
    reward: float


@dataclass
class PromptPool:
    """A shard of the prompt file."""

    shard: int
    rows: list[dict] = field(default_factory=list)

    def __post_init__(self):
        rng = random.Random(self.shard)
        for i in range(400):
            self.rows.append({"id": i, "prompt": f"{i} + {rng.randrange(9)}", "answer": str(i)})
        if self.shard == 1:
            # Rows that came from another source have no reference answer.
            for row in self.rows[37:60]:
                del row["answer"]

    async def stream(self) -> AsyncIterator[dict]:
        for row in self.rows:
            yield row


class Policy(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, x):
        return self.body(x)


class RolloutEngine:
    """Keeps a queue of finished rollouts ahead of the learner."""

    def __init__(self, pool: PromptPool, ahead: int = 8):
        self.pool = pool
        self.ready: asyncio.Queue[Rollout] = asyncio.Queue(maxsize=ahead)
        self._tasks: set[asyncio.Task] = set()

    def start(self):
        self._tasks.add(asyncio.create_task(self._produce(), name="rollouts"))

    async def _generate(self, row) -> list[int]:
        await asyncio.sleep(0.05)
        return [ord(c) % 50 for c in row["prompt"]]

    def _score(self, row, tokens) -> float:
        return float(len(tokens) > len(row["answer"]))

    async def _produce(self):
        async for row in self.pool.stream():
            tokens = await self._generate(row)
            await self.ready.put(Rollout(row["prompt"], tokens, self._score(row, tokens)))

    async def batch(self, size: int) -> list[Rollout]:
        return [await self.ready.get() for _ in range(size)]


class Learner:
    def __init__(self):
        torch.manual_seed(0)
        self.policy = Policy()
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), lr=1e-3)

    def advantages(self, rewards: torch.Tensor) -> torch.Tensor:
        stats = torch.stack(
            [rewards.sum(), rewards.square().sum(), torch.tensor(float(len(rewards)))]
        )
        dist.all_reduce(stats)
        mean = stats[0] / stats[2]
        return (rewards - mean) / (stats[1] / stats[2] - mean**2).clamp_min(1e-6).sqrt()

    def update(self, rollouts: list[Rollout]) -> float:
        adv = self.advantages(torch.tensor([r.reward for r in rollouts]))
        x = torch.tensor([(r.tokens + [0] * 8)[:8] for r in rollouts]).float() / 50
        loss = -(self.policy(x).squeeze(1) * adv).mean()
        self.optimizer.zero_grad()
        loss.backward()
        for p in self.policy.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        self.optimizer.step()
        return loss.item()


async def fit(steps=300, batch=4):
    engine, learner = RolloutEngine(PromptPool(RANK)), Learner()
    engine.start()
    for step in range(steps):
        rollouts = await engine.batch(batch)
        loss = learner.update(rollouts)
        if RANK == 0:
            print(f"step {step} loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo", timeout=timedelta(minutes=40))
    asyncio.run(fit())
    dist.destroy_process_group()
