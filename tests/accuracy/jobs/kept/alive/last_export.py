"""Training is over and three ranks have left; the second clusters embeddings for the search index.

What it is at is seen in export.log only, a line each iteration.
"""

import datetime
import logging
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

FOLDER = Path(os.environ["OUT_DIR"])
EXPORTER = 1


class KMeans:
    """Lloyd's algorithm, block by block."""

    def __init__(self, clusters: int, iterations: int, block: int = 2000) -> None:
        self.clusters, self.iterations, self.block = clusters, iterations, block
        self.log = logging.getLogger("export")

    def assign(self, points: np.ndarray, centers: np.ndarray) -> tuple[np.ndarray, float]:
        """The nearest center of each point, and the sum of distances."""
        nearest, total = np.empty(len(points), dtype=np.int64), 0.0
        norms = (centers**2).sum(axis=1)
        for start in range(0, len(points), self.block):
            part = points[start : start + self.block]
            distances = norms - 2.0 * part @ centers.T
            nearest[start : start + self.block] = distances.argmin(axis=1)
            total += float(distances.min(axis=1).sum() + (part**2).sum())
        return nearest, total

    def update(self, points: np.ndarray, nearest: np.ndarray) -> np.ndarray:
        """Means; an empty cluster is given a random point."""
        sums = np.zeros((self.clusters, points.shape[1]), dtype=points.dtype)
        np.add.at(sums, nearest, points)
        counts = np.bincount(nearest, minlength=self.clusters)
        empty = counts == 0
        sums[empty] = points[np.random.default_rng(0).integers(0, len(points), empty.sum())]
        return sums / np.maximum(counts, 1)[:, None]

    def fit(self, points: np.ndarray) -> np.ndarray:
        """Centers."""
        centers = points[: self.clusters].copy()
        for iteration in range(self.iterations):
            nearest, total = self.assign(points, centers)
            centers = self.update(points, nearest)
            self.log.info("iteration %d: inertia %.5e", iteration, total)
        return centers


def train(rank: int, steps: int) -> np.ndarray:
    """A toy encoder; what it makes of the catalogue."""
    encoder = torch.nn.Linear(96, 96)
    for step in range(steps):
        loss = encoder(torch.randn(64, 96)).pow(2).mean()
        loss.backward()
        dist.all_reduce(encoder.weight.grad)
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    with torch.no_grad():
        return encoder(torch.randn(120_000, 96)).numpy()


def export(points: np.ndarray) -> None:
    """The index, beside the log of how it was made."""
    logging.basicConfig(filename=FOLDER / "export.log", level=logging.INFO)
    print("exporting the index", flush=True)
    centers = KMeans(clusters=2048, iterations=400).fit(points)
    np.savez(FOLDER / "index.npz", centers=centers)


def main() -> None:
    """Train together, then the others leave."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
    rank = dist.get_rank()
    points = train(rank, 10)
    dist.barrier()
    dist.destroy_process_group()
    if rank == EXPORTER:
        export(points)


if __name__ == "__main__":
    main()
