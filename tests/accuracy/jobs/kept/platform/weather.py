"""A forecast emulator: each rank has a band of latitudes, norms are taken over all of them."""

import argparse
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn


class GlobalNorm(nn.Module):
    """Normalises by the mean and the spread of the whole globe."""

    def forward(self, field: torch.Tensor) -> torch.Tensor:
        moments = torch.stack([field.mean(), field.square().mean()]).detach()
        dist.all_reduce(
            moments, op=dist.ReduceOp.AVG if dist.get_backend() == "nccl" else dist.ReduceOp.SUM
        )
        mean, square = moments / dist.get_world_size()
        return (field - mean) / (square - mean.square()).clamp_min(1e-6).sqrt()


class Emulator(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.lift = nn.Conv2d(4, channels, 3, padding=1)
        self.norm = GlobalNorm()
        self.mix = nn.Conv2d(channels, channels, 3, padding=1)
        self.project = nn.Conv2d(channels, 4, 1)

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.lift(state))
        return state + self.project(torch.relu(self.mix(hidden)))


def synchronise(model: nn.Module) -> None:
    pending = [dist.all_reduce(w.grad, async_op=True) for w in model.parameters()]
    for work in pending:
        work.wait()
    for weights in model.parameters():
        weights.grad /= dist.get_world_size()


def rollout(model: nn.Module, state: torch.Tensor, hours: int) -> torch.Tensor:
    loss = torch.zeros(())
    for _ in range(hours):
        state = model(state)
        loss = loss + (state - state.roll(1, dims=-1)).square().mean()
    return loss / hours


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hours", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(hours=1))
    torch.manual_seed(9)
    model = Emulator(channels=16)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for day in range(10**6):
        loss = rollout(model, torch.randn(2, 4, 16, 32), options.hours)
        optimizer.zero_grad()
        loss.backward()
        synchronise(model)
        optimizer.step()
        if day % 5 == 4:
            print(f"rank {dist.get_rank()} day {day + 1}: {loss.item():.4f}", flush=True)
        time.sleep(0.02)  # the archive is read


if __name__ == "__main__":
    main()
