"""Reinforcement learning from a reward model that is served elsewhere and slow: one rank asks it for
each answer of the batch in turn, the others wait for the rewards in a broadcast.
"""

import json
import urllib.request

import remote_services
import torch
import torch.distributed as dist
from common import Learner, join, say

PORT = 29220
JUDGE = 2
"""The rank that may talk to the reward model."""
BATCH = 6


class RewardClient:
    def __init__(self, url: str) -> None:
        self.url = url

    def score(self, prompt: str, answer: str) -> float:
        body = json.dumps({"prompt": prompt, "answer": answer}).encode()
        request = urllib.request.Request(self.url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=300) as reply:
            return json.loads(reply.read())["reward"]


class Policy(Learner):
    def sample(self, count: int) -> list[str]:
        with torch.no_grad():
            numbers = self.model.module(torch.randn(count, self.width)).argmax(1).tolist()
        return [chr(97 + number % 26) * (40 + number) for number in numbers]


class Trainer:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.policy = Policy()
        self.client = RewardClient(f"http://127.0.0.1:{PORT}/score") if rank == JUDGE else None

    def rewards(self, answers: list[list[str]]) -> torch.Tensor:
        mine = torch.zeros(BATCH)
        if self.client is not None:
            flat = [answer for part in answers for answer in part][:BATCH]
            for number, answer in enumerate(flat):
                mine[number] = self.client.score("Explain gravity.", answer)
                say(f"scored {number + 1}/{BATCH}")
        dist.broadcast(mine, src=JUDGE)
        return mine

    def iteration(self, number: int) -> None:
        everybody: list[list[str]] = [[]] * dist.get_world_size()
        dist.all_gather_object(everybody, self.policy.sample(2))
        rewards = self.rewards(everybody)
        loss = 0.0
        for _ in range(4):
            loss = self.policy.step(torch.randn(BATCH, self.policy.width) * rewards[:, None])
        say(f"iteration {number}: reward {rewards.mean():.3f} loss {loss:.4f}")


def main() -> None:
    rank, _ = join()
    if rank == JUDGE:
        remote_services.start("reward", PORT)
    trainer = Trainer(rank)
    dist.barrier()
    for number in range(1000):
        trainer.iteration(number)


if __name__ == "__main__":
    main()
