"""Fine-tuning with a validation metric whose way of merging depends on the shape of the state."""

from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class Metric:
    """Collects states; a scalar is summed over the ranks, a list of scores is gathered."""

    def __init__(self) -> None:
        self.states: list[torch.Tensor] = []

    def update(self, scores: torch.Tensor) -> None:
        self.states.append(scores)

    def merged(self) -> torch.Tensor:
        state = self.states[-1] if len(self.states) == 1 else torch.cat(self.states)
        return merge(state)


def merge(state: torch.Tensor) -> torch.Tensor:
    """One state from those of all ranks."""
    if state.ndim == 0:
        total = state.clone()
        dist.all_reduce(total)
        return total / dist.get_world_size()
    longest = 64
    padded = F.pad(state, (0, longest - len(state)), value=float("nan"))
    parts = [torch.empty_like(padded) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, padded)
    everything = torch.cat(parts)
    return everything[~everything.isnan()]


class Ranker(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x).squeeze()


class Validation:
    """The held-out set, shared out in contiguous pieces; it grows as examples are approved."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.examples = torch.randn(400, 24, generator=torch.Generator().manual_seed(5))

    def piece(self, known: int) -> torch.Tensor:
        size = -(-known // self.world)
        return self.examples[self.rank * size : min(known, (self.rank + 1) * size)]


def validate(model: Ranker, validation: Validation, known: int) -> float:
    metric = Metric()
    with torch.no_grad():
        metric.update(model(validation.piece(known)).sigmoid())
    return metric.merged().mean().item()


def train(model: Ranker, rank: int, world: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    validation = Validation(rank, world)
    random = torch.Generator().manual_seed(100 + rank)
    approved = [12, 16, 25, 13, 40]  # 13 after a clean-up
    for step in range(1, 2000):
        x = torch.randn(16, 24, generator=random)
        loss = F.binary_cross_entropy_with_logits(model(x), (x.sum(1) > 0).float())
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
        if step % 2 == 0:
            score = validate(model, validation, approved[step // 2 - 1])
            if rank == 0:
                print(f"validation {score:.3f}", flush=True)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    train(Ranker(), dist.get_rank(), dist.get_world_size())


if __name__ == "__main__":
    main()
