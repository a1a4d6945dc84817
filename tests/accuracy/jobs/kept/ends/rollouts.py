"""Reinforcement learning: an actor process per rank hands its rollouts to the learner as tensors."""

import os
import random
import time
from collections import deque
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

FEATURES = 32


def horizon(rank: int, episode: int) -> int:
    """Steps of an episode; those of rank 1 get long once its agent survives."""
    return 8_000 if rank == 1 and episode >= 6 else 200


class Actor:
    """Plays with the learner's last weights, then waits for new ones."""

    def __init__(self, rank: int, rollouts: mp.Queue, weights: mp.SimpleQueue) -> None:
        self.rank, self.rollouts, self.weights = rank, rollouts, weights

    def play(self, policy: torch.Tensor, episode: int) -> dict[str, torch.Tensor]:
        steps = horizon(self.rank, episode)
        states = torch.randn(steps, FEATURES)
        return {"states": states, "rewards": states @ policy}

    def run(self) -> None:
        torch.set_num_threads(1)
        episode = 0
        while True:
            policy = torch.tensor(self.weights.get())
            episode += 1
            self.rollouts.put(self.play(policy, episode))


class Learner:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        context = mp.get_context("fork")
        self.rollouts, self.weights = context.Queue(maxsize=2), context.SimpleQueue()
        actor = Actor(rank, self.rollouts, self.weights)
        self.actor = context.Process(target=actor.run, name="actor", daemon=True)
        self.actor.start()
        self.replay: deque[dict[str, torch.Tensor]] = deque(maxlen=500)

    def build(self) -> None:
        self.policy = nn.Linear(FEATURES, 1)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=1e-3)

    def collect(self) -> dict[str, torch.Tensor]:
        self.weights.put(self.policy.weight.detach().flatten().tolist())
        self.replay.append(self.rollouts.get())
        return random.choice(self.replay)

    def update(self, rollout: dict[str, torch.Tensor]) -> float:
        guess = self.policy(rollout["states"]).squeeze(-1)
        loss = nn.functional.mse_loss(guess, rollout["rewards"])
        self.optimizer.zero_grad()
        loss.backward()
        for parameter in self.policy.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        self.optimizer.step()
        return loss.item()


def main() -> None:
    rank = int(os.environ["RANK"])
    learner = Learner(rank)  # forks, so before there are threads
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    learner.build()
    for episode in range(1, 100_000):
        loss = learner.update(learner.collect())
        print(f"[rank{rank}] episode {episode} loss {loss:.4f}", flush=True)
        time.sleep(0.2)


if __name__ == "__main__":
    main()
