"""Object detection by mp.spawn; now and then the first rank scores detections in a process apart."""

import os
import time
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


def score(detections: np.ndarray, truth: np.ndarray, results) -> None:
    """Match boxes by overlap; runs in a process, because it is slow and needs no torch."""
    per_box = []
    for box in detections:
        overlap = np.minimum(box[2:], truth[:, 2:]) - np.maximum(box[:2], truth[:, :2])
        best = float(np.prod(np.clip(overlap, 0, None), axis=1).max())
        per_box.append({"box": box.tolist(), "overlap": best, "matched": best > 0.1})
    results.put(per_box)


class Evaluator:
    def __init__(self, seed: int = 0):
        self.context = mp.get_context("spawn")
        self.rng = np.random.default_rng(seed)

    def _boxes(self, count: int) -> np.ndarray:
        corner = self.rng.random((count, 2))
        return np.hstack([corner, corner + self.rng.random((count, 2))])

    def mean_overlap(self, found: int) -> float:
        results = self.context.Queue()
        worker = self.context.Process(
            target=score, args=(self._boxes(found), self._boxes(20), results)
        )
        worker.start()
        worker.join()
        return float(np.mean([row["overlap"] for row in results.get()]))


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Conv2d(3, 8, 3, stride=2)
        self.boxes = nn.Conv2d(8, 4, 1)

    def forward(self, x):
        return self.boxes(torch.relu(self.backbone(x)))


def sync(model: nn.Module, world: int):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world


def worker(rank: int, world: int):
    dist.init_process_group("gloo", rank=rank, world_size=world, timeout=timedelta(minutes=40))
    torch.manual_seed(rank)
    model, evaluator = Detector(), Evaluator()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for step in range(1000):
        images = torch.randn(2, 3, 32, 32)
        loss = model(images).square().mean()
        optimizer.zero_grad()
        loss.backward()
        sync(model, world)
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
        if step % 5 == 4 and rank == 0:
            # The better it gets, the more boxes pass the threshold.
            found = 10 if step < 9 else 4000
            print(f"evaluating {found} boxes after {step} steps", flush=True)
            print(f"mean overlap {evaluator.mean_overlap(found):.3f}", flush=True)
        time.sleep(0.1)


if __name__ == "__main__":
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "30620")
    mp.spawn(worker, args=(3,), nprocs=3)
