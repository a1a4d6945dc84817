"""Driving-scene model: loader workers turn sweeps of a lidar into voxels, which costs what it costs."""

import math
import os
import random
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

CELLS = 512
DENSITY = {"64-beam": 150, "128-beam merged": 16_000}


def sweep(seed: int, points: int) -> list[tuple[float, float, float]]:
    rng = random.Random(seed)
    return [(rng.gauss(0, 20), rng.gauss(0, 20), rng.random() * 3) for _ in range(points)]


def remove_ego_motion(points, yaw: float):
    c, s = math.cos(yaw), math.sin(yaw)
    return [(c * x - s * y, s * x + c * y, z) for x, y, z in points]


def remove_ground(points):
    """Points above the lowest of their neighbourhood."""
    lowest: dict[tuple[int, int], float] = {}
    for x, y, z in points:
        key = (int(x // 2), int(y // 2))
        lowest[key] = min(z, lowest.get(key, z))
    return [p for p in points if p[2] > lowest[int(p[0] // 2), int(p[1] // 2)] + 0.05]


def voxelize(points) -> list[float]:
    grid = [0.0] * CELLS
    for x, y, z in points:
        grid[hash((int(x), int(y), int(z))) % CELLS] += 1.0
    top = max(grid) or 1.0
    return [value / top for value in grid]


class Scenes(Dataset):
    """Scenes of ten sweeps each; the later drives of one car have a lidar with many more points."""

    def __init__(self, rank: int, sweeps: int = 10) -> None:
        self.new_lidar_from = 300 if rank == 1 else len(self)
        self.sweeps = sweeps

    def __len__(self) -> int:
        return 60_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        total = [0.0] * CELLS
        sensor = "64-beam" if index < self.new_lidar_from else "128-beam merged"
        for number in range(self.sweeps):
            points = sweep(index * self.sweeps + number, DENSITY[sensor])
            points = remove_ground(remove_ego_motion(points, 0.01 * number))
            total = [a + b for a, b in zip(total, voxelize(points))]
        return torch.tensor(total), index % 4


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(CELLS, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, 4)

    def forward(self, voxels: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(voxels))


class Runner:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.model = DDP(Detector())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        scenes = Scenes(rank)
        self.loader = DataLoader(
            scenes,
            batch_size=24,
            num_workers=1,
            sampler=DistributedSampler(scenes, shuffle=False),
            prefetch_factor=2,
            drop_last=True,
        )

    def run_epoch(self) -> None:
        for step, (voxels, labels) in enumerate(self.loader):
            loss = nn.functional.cross_entropy(self.model(voxels), labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if self.rank == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    Runner(int(os.environ["RANK"])).run_epoch()


if __name__ == "__main__":
    main()
