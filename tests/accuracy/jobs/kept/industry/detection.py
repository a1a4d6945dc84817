"""Detection training in the style of the usual engine: epochs, evaluation, best checkpoint."""

import argparse
import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def is_main_process() -> bool:
    return not dist.is_initialized() or dist.get_rank() == 0


def all_gather(data: Any) -> list[Any]:
    """Any picklable thing from all ranks."""
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, data)
    return gathered


class Boxes:
    """Images with one box each, made up."""

    def __init__(self, seed: int, batches: int) -> None:
        self.seed, self.batches = seed, batches

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed)
        for _ in range(self.batches):
            images = torch.rand(4, 3, 16, 16, generator=generator)
            yield images, torch.rand(4, 4, generator=generator)


class BoxModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU())
        self.box = nn.Linear(8 * 12 * 12, 4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.box(self.features(images).flatten(1)).sigmoid()


class CocoStyleEvaluator:
    """Collects predictions of this rank; merged over ranks to be judged."""

    def __init__(self) -> None:
        self.predictions: list[tuple[torch.Tensor, torch.Tensor]] = []

    def update(self, predicted: torch.Tensor, target: torch.Tensor) -> None:
        self.predictions.append((predicted, target))

    def synchronize_between_processes(self) -> None:
        self.predictions = [pair for some in all_gather(self.predictions) for pair in some]

    def summarize(self) -> float:
        return -sum(float((p - t).abs().mean()) for p, t in self.predictions) / len(
            self.predictions
        )


def train_one_epoch(model, optimizer, loader, epoch: int) -> None:
    model.train()
    for step, (images, boxes) in enumerate(loader):
        loss = nn.functional.smooth_l1_loss(model(images), boxes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if is_main_process() and step % 10 == 0:
            print(f"Epoch: [{epoch}] [{step}/{loader.batches}] loss: {loss.item():.4f}", flush=True)


@torch.no_grad()
def evaluate(model, loader) -> CocoStyleEvaluator:
    model.eval()
    evaluator = CocoStyleEvaluator()
    for images, boxes in loader:
        evaluator.update(model.module(images), boxes)
    return evaluator


class BestCheckpoint:
    def __init__(self, path: str) -> None:
        self.path, self.best = path, float("-inf")

    def update(self, model, evaluator: CocoStyleEvaluator) -> None:
        evaluator.synchronize_between_processes()
        score = evaluator.summarize()
        print(f"score {score:.4f}", flush=True)
        if score > self.best:
            self.best = score
            torch.save(model.module.state_dict(), self.path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--eval-start", type=int, default=1)
    options = parser.parse_args()
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    model = DistributedDataParallel(BoxModel())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    checkpoint = BestCheckpoint(os.path.join(os.environ["OUT_DIR"], "best.pt"))
    for epoch in range(options.epochs):
        train_one_epoch(model, optimizer, Boxes(dist.get_rank() + 10 * epoch, 40), epoch)
        if epoch >= options.eval_start:
            evaluator = evaluate(model, Boxes(99, 10))
            if is_main_process():
                print(f"Test: [{epoch}]", flush=True)
                checkpoint.update(model, evaluator)


if __name__ == "__main__":
    main()
