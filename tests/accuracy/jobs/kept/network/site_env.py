"""Starts from the settings of the node that it is on, as /etc/profile.d would give them to a shell.

The settings were written when the allocation was made; node-2's are of the allocation before.
"""

import configparser
import os
import sys
import time
from datetime import timedelta

SETTINGS = """
[node-1]
MASTER_ADDR = 10.77.0.2
WORLD_SIZE = 4
OMP_NUM_THREADS = 1

[node-2]
MASTER_ADDR = 10.77.0.2
WORLD_SIZE = 8
OMP_NUM_THREADS = 1
"""


def settings_of(node):
    parser = configparser.ConfigParser()
    parser.optionxform = str
    parser.read_string(SETTINGS)
    return dict(parser[node])


def become_trainer():
    node = os.uname().nodename
    told = settings_of(node)
    said = " ".join(f"{key}={value}" for key, value in sorted(told.items()))
    print(f"{node}: {said} RANK={os.environ['RANK']}", flush=True)
    os.execve(sys.executable, [sys.executable, __file__, "--train"], {**os.environ, **told})


class Policy:
    """REINFORCE on a bandit: little to compute, one all_reduce a step."""

    def __init__(self, torch, arms):
        self.torch = torch
        self.logits = torch.zeros(arms)
        self.payoff = torch.linspace(0, 1, arms)

    def gradient(self):
        chances = self.logits.softmax(dim=0)
        arm = int(self.torch.multinomial(chances, 1))
        grad = -chances
        grad[arm] += 1
        return grad * self.payoff[arm]

    def update(self, grad, rate=0.1):
        self.logits += rate * grad


def train():
    import torch
    import torch.distributed as dist

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    print(f"rank {rank} of {world} joins", flush=True)
    dist.init_process_group("gloo", timeout=timedelta(minutes=45))
    torch.manual_seed(rank)
    policy = Policy(torch, arms=12)
    for episode in range(100_000):
        grad = policy.gradient()
        dist.all_reduce(grad)
        policy.update(grad / world)
        if rank == 0:
            print(f"episode {episode} best arm {int(policy.logits.argmax())}", flush=True)
        time.sleep(0.3)


if __name__ == "__main__":
    train() if "--train" in sys.argv else become_trainer()
