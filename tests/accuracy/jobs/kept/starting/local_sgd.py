"""Local SGD: in the warm-up ranks average at each step, after that seldom, in a group of its own."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

WARMUP = 8


class Checkpoint:
    """Where each rank was when the job was preempted: every node saves by itself."""

    SAVED = {0: 0, 1: 0, 2: 0, 3: 9}

    @classmethod
    def step_of(cls, rank):
        return cls.SAVED.get(rank, 0)


class OuterAverager:
    """Averages in a group of its own, so that its traffic is not in the way of the inner steps';
    the group is made when it is needed first."""

    def __init__(self, every=4):
        self.every, self.group = every, None

    def build(self):
        """Make the group: all ranks, patient."""
        self.group = dist.new_group(timeout=timedelta(minutes=30))

    def average(self, parameters, step):
        """Average every so many steps."""
        if step % self.every:
            return
        for parameter in parameters:
            dist.all_reduce(parameter.data, group=self.group)
            parameter.data /= dist.get_world_size()


def average_everywhere(parameters):
    """Average over the job."""
    flat = torch.nn.utils.parameters_to_vector(parameters)
    dist.all_reduce(flat)
    torch.nn.utils.vector_to_parameters(flat / dist.get_world_size(), parameters)


class Trainer:
    """The loop."""

    def __init__(self):
        self.model = torch.nn.Sequential(torch.nn.Linear(20, 40), torch.nn.Linear(40, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01)
        self.outer = OuterAverager()

    def train_step(self):
        """Local update."""
        loss = self.model(torch.randn(16, 20)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def synchronize(self, step):
        """Warm-up averages at each step; after that the outer averager does."""
        parameters = list(self.model.parameters())
        if step == WARMUP:
            self.outer.build()
        if self.outer.group is None:
            average_everywhere(parameters)
        else:
            self.outer.average(parameters, step)

    def run(self, first, steps):
        """Train from the step that was saved."""
        for step in range(first, steps):
            loss = self.train_step()
            print(f"rank {os.environ['RANK']} step {step} {loss:.4f}", flush=True)
            self.synchronize(step)


if __name__ == "__main__":
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    Trainer().run(Checkpoint.step_of(dist.get_rank()), 10_000)
