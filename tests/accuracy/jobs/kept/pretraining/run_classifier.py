"""Fine-tunes a sentence classifier (grown out of the old run_glue script)."""

import argparse
import datetime
import logging
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

log = logging.getLogger(__name__)


def convert_examples_to_features(lines: list[str], width: int) -> torch.Tensor:
    rows = []
    for line in lines:
        ids = [ord(c) % 256 for c in line][:width]
        rows.append(ids + [0] * (width - len(ids)))
    return torch.tensor(rows)


def load_and_cache_examples(args: argparse.Namespace, task: str, split: str) -> TensorDataset:
    """Only the first process reads the raw text; the others take what it has cached."""
    if args.local_rank not in (-1, 0):
        dist.barrier()
    cached = os.path.join(args.data_dir, f"cached_{split}_{task}_{args.max_seq_length}.pt")
    if os.path.exists(cached) and not args.overwrite_cache:
        log.info("rank %d: loading features from %s", args.local_rank, cached)
        features, labels = torch.load(cached)
        return TensorDataset(features, labels)
    log.info("rank %d: creating features", args.local_rank)
    lines = [f"example number {i} of {task}" for i in range(256)]
    features = convert_examples_to_features(lines, args.max_seq_length)
    labels = torch.arange(len(lines)) % 2
    if args.local_rank in (-1, 0):
        torch.save((features, labels), cached)
    if args.local_rank == 0:
        dist.barrier()
    return TensorDataset(features, labels)


class Classifier(nn.Module):
    def __init__(self, labels: int = 2):
        super().__init__()
        self.embeddings = nn.EmbeddingBag(256, 64)
        self.classifier = nn.Sequential(nn.Dropout(0.1), nn.Linear(64, labels))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.embeddings(ids))


def train(args: argparse.Namespace, dataset: TensorDataset, model: nn.Module) -> int:
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler)
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    steps = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for ids, labels in loader:
            loss = nn.functional.cross_entropy(model(ids), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
    return steps


def evaluate(args: argparse.Namespace, dataset: TensorDataset, model: nn.Module) -> float:
    with torch.no_grad():
        ids, labels = dataset.tensors
        return (model(ids).argmax(-1) == labels).float().mean().item()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data_dir", default=os.environ.get("OUT_DIR", "/tmp"))
    parser.add_argument("--task", default="sst2")
    parser.add_argument("--max_seq_length", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--overwrite_cache", action="store_true")
    args = parser.parse_args()
    args.local_rank = int(os.environ.get("LOCAL_RANK", -1))
    return args


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    args = parse()
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=45))
    torch.manual_seed(42)
    # What last night's run left in the folder that everybody shares.
    if args.local_rank == 0:
        stale = os.path.join(args.data_dir, f"cached_train_{args.task}_{args.max_seq_length}.pt")
        torch.save(
            (
                torch.zeros(64, args.max_seq_length, dtype=torch.long),
                torch.zeros(64, dtype=torch.long),
            ),
            stale,
        )
    dist.barrier()
    model = Classifier()
    dataset = load_and_cache_examples(args, args.task, "train")
    log.info("rank %d: training on %d examples", args.local_rank, len(dataset))
    steps = train(args, dataset, model)
    if args.local_rank in (-1, 0):
        log.info("done after %d steps, accuracy %.3f", steps, evaluate(args, dataset, model))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
