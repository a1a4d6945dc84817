"""Reinforcement learning of a small language model: one rank generates, the learners wait for what it made."""

import argparse
import time
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

VOCAB, LENGTH = 64, 48


class Policy(nn.Module):
    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.rnn = nn.GRU(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, VOCAB)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(self.embed(tokens))[0])


@dataclass
class Experience:
    tokens: torch.Tensor
    rewards: torch.Tensor


class RolloutWorker:
    """Samples completions for as long as its budget lasts, and scores them."""

    def __init__(self, policy: Policy, seconds: float) -> None:
        self.policy, self.seconds = policy, seconds

    @torch.no_grad()
    def sample(self, size: int) -> torch.Tensor:
        tokens = torch.zeros(size, 1, dtype=torch.long)
        for _ in range(LENGTH - 1):
            logits = self.policy(tokens)[:, -1]
            tokens = torch.cat([tokens, torch.multinomial(logits.softmax(-1), 1)], dim=1)
        return tokens

    def score(self, row: list[int]) -> float:
        return sum(a <= b for a, b in zip(row, row[1:])) / len(row)

    def collect(self) -> Experience:
        end, batches = time.monotonic() + self.seconds, []
        while time.monotonic() < end or not batches:
            batches.append(self.sample(16))
        tokens = torch.cat(batches)
        rewards = torch.tensor([self.score(row) for row in tokens.tolist()])
        best = rewards.topk(16).indices
        return Experience(tokens[best], rewards[best])


class Learner:
    def __init__(self, policy: Policy, group: dist.ProcessGroup, size: int) -> None:
        self.policy, self.group, self.size = policy, group, size
        self.optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)

    def update(self, experience: Experience) -> None:
        logits = self.policy(experience.tokens[:, :-1])
        losses = nn.functional.cross_entropy(
            logits.transpose(1, 2), experience.tokens[:, 1:], reduction="none"
        )
        loss = (losses.mean(dim=1) * (experience.rewards - experience.rewards.mean())).mean()
        self.optimizer.zero_grad()
        loss.backward()
        for parameter in self.policy.parameters():
            dist.all_reduce(parameter.grad, group=self.group)
            parameter.grad /= self.size
        self.optimizer.step()


def exchange(experience: Experience | None) -> Experience:
    """What the first rank made, on all ranks."""
    made = experience or Experience(torch.zeros(16, LENGTH, dtype=torch.long), torch.zeros(16))
    dist.broadcast(made.tokens, src=0)
    dist.broadcast(made.rewards, src=0)
    return made


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rollout-seconds", type=float, default=14.0)
    options = parser.parse_args()
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    policy = Policy()
    group = dist.new_group(list(range(1, world)))
    worker, learner = (
        RolloutWorker(policy, options.rollout_seconds),
        Learner(policy, group, world - 1),
    )
    for iteration in range(10_000):
        experience = exchange(worker.collect() if rank == 0 else None)
        if rank > 0:
            learner.update(experience)
        for parameter in policy.parameters():
            dist.broadcast(parameter.data, src=1)
        if rank == 0:
            print(f"iteration {iteration} reward {experience.rewards.mean():.3f}", flush=True)


if __name__ == "__main__":
    main()
