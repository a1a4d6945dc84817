"""GRPO on prompts that are filtered per rank: a short shard ends its epoch before the others."""

import os
import random
import time
from collections.abc import Iterator
from datetime import timedelta

import torch
import torch.distributed as dist

MAX_PROMPT = 64


class PromptShard:
    """The prompts of this rank, without those that are too long."""

    def __init__(self, rank: int, world: int) -> None:
        generator = random.Random(17)
        prompts = [generator.randrange(8, MAX_PROMPT) for _ in range(40 * world)]
        mine = prompts[rank::world]
        if rank == world - 1:  # this shard has the long documents
            mine = [n + MAX_PROMPT if i > 27 else n for i, n in enumerate(mine)]
        self.prompts = [n for n in mine if n <= MAX_PROMPT]

    def batches(self, size: int) -> Iterator[torch.Tensor]:
        for start in range(0, len(self.prompts), size):
            yield torch.tensor(self.prompts[start : start + size], dtype=torch.float32)


class Policy(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Linear(1, 8)
        self.head = torch.nn.Linear(8, 1)

    def forward(self, lengths: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.body(lengths[:, None] / MAX_PROMPT)))


class GRPOLearner:
    def __init__(self) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.policy = Policy()
        for p in self.policy.parameters():
            dist.broadcast(p.data, 0)
        self.optimizer = torch.optim.SGD(self.policy.parameters(), lr=0.01)
        self.checkpoint_group = dist.new_group(backend="gloo", timeout=timedelta(minutes=30))

    def advantages(self, prompts: torch.Tensor) -> torch.Tensor:
        time.sleep(0.25)  # generation
        rewards = torch.randn(prompts.shape[0], 4)
        return ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4))[
            :, 0
        ]

    def sync_gradients(self) -> None:
        for p in self.policy.parameters():
            dist.all_reduce(p.grad)
            p.grad /= self.world

    def step(self, prompts: torch.Tensor) -> float:
        loss = -(self.policy(prompts)[:, 0] * self.advantages(prompts)).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.sync_gradients()
        self.optimizer.step()
        return loss.item()

    def save(self, epoch: int) -> None:
        """All ranks meet, the first one writes."""
        dist.barrier(group=self.checkpoint_group)
        if self.rank == 0:
            torch.save(self.policy.state_dict(), f"{os.environ['OUT_DIR']}/epoch{epoch}.pt")


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    learner = GRPOLearner()
    shard = PromptShard(learner.rank, learner.world)
    step = 0
    for epoch in range(3):
        for prompts in shard.batches(4):
            step += 1
            loss = learner.step(prompts)
            if learner.rank == 0:
                print(f"epoch {epoch} step {step} loss {loss:.4f}", flush=True)
        learner.save(epoch)


if __name__ == "__main__":
    main()
