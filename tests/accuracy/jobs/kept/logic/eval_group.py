"""Data parallel training with an evaluation every few steps, on a group of its own that is built when first needed."""

from datetime import timedelta
from functools import cached_property

import torch
import torch.distributed as dist
from torch import nn

LONG = timedelta(minutes=30)
HELD_OUT = ("books", "code", "web")
"""Domains that are scored, a file each."""


class Domain:
    """Held-out examples of one domain."""

    def __init__(self, name: str) -> None:
        random = torch.Generator().manual_seed(sum(map(ord, name)))
        self.x = torch.randn(64, 20, generator=random)
        self.y = self.x.sum(1, keepdim=True)


class Evaluation:
    """Each rank scores the domains of its share; then all of them are averaged."""

    def __init__(self, rank: int, world: int) -> None:
        self.world = world
        self.domains = [Domain(name) for name in HELD_OUT[rank::world]]

    @cached_property
    def group(self) -> dist.ProcessGroup:
        """Apart from the gradients, so that an evaluation can be moved to a thread one day."""
        return dist.new_group(timeout=LONG)

    @torch.no_grad()
    def score(self, model: nn.Module) -> float | None:
        if not self.domains:
            return None
        error = torch.stack([(model(one.x) - one.y).pow(2).mean() for one in self.domains]).sum()
        dist.all_reduce(error, group=self.group)
        return error.item() / len(HELD_OUT)


class Optimizer:
    """SGD over the mean gradient of all ranks."""

    def __init__(self, model: nn.Module, rate: float) -> None:
        self.parameters, self.rate = list(model.parameters()), rate

    def step(self) -> None:
        flat = nn.utils.parameters_to_vector(p.grad for p in self.parameters)
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        used = 0
        with torch.no_grad():
            for parameter in self.parameters:
                part = flat[used : used + parameter.numel()]
                used += parameter.numel()
                parameter -= self.rate * part.view_as(parameter)
                parameter.grad = None


class Trainer:
    def __init__(self) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.model = nn.Sequential(nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 1))
        self.optimizer = Optimizer(self.model, 0.02)
        self.evaluation = Evaluation(self.rank, self.world)
        self.random = torch.Generator().manual_seed(self.rank)

    def report(self, text: str) -> None:
        if self.rank == 0:
            print(text, flush=True)

    def fit(self, steps: int, evaluate_every: int) -> None:
        for number in range(1, steps + 1):
            x = torch.randn(32, 20, generator=self.random)
            loss = (self.model(x) - x.sum(1, keepdim=True)).pow(2).mean()
            loss.backward()
            self.optimizer.step()
            self.report(f"step {number} loss {loss.item():.3f}")
            if number % evaluate_every == 0:
                score = self.evaluation.score(self.model)
                self.report(f"held out {score}")


def main() -> None:
    dist.init_process_group("gloo", timeout=LONG)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    Trainer().fit(steps=2000, evaluate_every=8)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
