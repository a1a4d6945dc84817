"""Retrieval model; after each epoch the first rank computes recall with a pool of processes."""

import argparse
import multiprocessing
import os
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class TwoTowers(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.query = nn.Sequential(nn.Linear(32, width), nn.ReLU(), nn.Linear(width, width))
        self.document = nn.Sequential(nn.Linear(32, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, queries: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
        return (
            F.normalize(self.query(queries), dim=-1)
            @ F.normalize(self.document(documents), dim=-1).T
        )


def ranks_of_queries(item: tuple[torch.Tensor, torch.Tensor, int]) -> list[int]:
    """Position of the right document for each query of a slice; runs in the pool."""
    queries, documents, first = item
    scores = queries @ documents.T
    order = scores.argsort(dim=1, descending=True)
    right = torch.arange(first, first + len(queries)).unsqueeze(1)
    return (order == right).nonzero()[:, 1].tolist()


class RecallEvaluator:
    """Recall at k over the whole index."""

    def __init__(self, model: TwoTowers, processes: int) -> None:
        self.model, self.processes = model, processes

    @torch.no_grad()
    def embed(self) -> tuple[torch.Tensor, torch.Tensor]:
        texts = torch.randn(2048, 32, generator=torch.Generator().manual_seed(5))
        return F.normalize(self.model.query(texts), dim=-1), F.normalize(
            self.model.document(texts), dim=-1
        )

    def recall(self, k: int) -> float:
        queries, documents = self.embed()
        slices = [(part.clone(), documents, 512 * i) for i, part in enumerate(queries.split(512))]
        with multiprocessing.get_context("fork").Pool(self.processes) as pool:
            positions = [p for some in pool.map(ranks_of_queries, slices) for p in some]
        return sum(position < k for position in positions) / len(positions)


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> float:
    loss = torch.zeros(())
    for _ in range(steps):
        texts = torch.randn(64, 32)
        scores = model(texts, texts + 0.1 * torch.randn_like(texts))
        loss = F.cross_entropy(scores * 20, torch.arange(64))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--eval-processes", type=int, default=2)
    options = parser.parse_args()
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = int(os.environ["RANK"])
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    model = DistributedDataParallel(TwoTowers())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    evaluator = RecallEvaluator(model.module, options.eval_processes)
    for epoch in range(options.epochs):
        loss = train_epoch(model, optimizer, options.steps)
        if rank == 0:
            print(f"epoch {epoch} loss {loss:.3f}, evaluating", flush=True)
            print(f"epoch {epoch} recall@10 {evaluator.recall(10):.3f}", flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
