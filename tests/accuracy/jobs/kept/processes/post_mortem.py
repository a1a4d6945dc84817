"""The team's entry point: with --debug an exception opens a debugger where it happened."""

import argparse
import os
import pdb
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset


def with_post_mortem(entry: Callable[[argparse.Namespace], None]) -> Callable:
    """What Hydra and Lightning users have in their scripts."""

    def run(options: argparse.Namespace) -> None:
        try:
            entry(options)
        except Exception:
            traceback.print_exc()
            if not options.debug:
                raise
            sys.stderr.flush()
            pdb.post_mortem(sys.exc_info()[2])

    return run


class Reviews(Dataset):
    """Ragged token lists; one file has a row without a label."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> dict:
        row = {"tokens": list(range(3 + index % 5)), "label": index % 2}
        if self.rank == 0 and index == 37:
            del row["label"]
        return row


def collate(rows: list[dict]) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(len(row["tokens"]) for row in rows)
    tokens = torch.tensor([row["tokens"] + [0] * (longest - len(row["tokens"])) for row in rows])
    return tokens, torch.tensor([row["label"] for row in rows])


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.EmbeddingBag(32, 16)
        self.head = nn.Linear(16, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(tokens))


@with_post_mortem
def train(options: argparse.Namespace) -> None:
    rank = dist.get_rank()
    loader = DataLoader(Reviews(rank), batch_size=4, collate_fn=collate)
    model = nn.parallel.DistributedDataParallel(Classifier())
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    for step, (tokens, labels) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(tokens), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step}: {loss.item():.3f}", flush=True)
        time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--debug", action="store_true")
    parser.add_argument("--lr", type=float, default=1e-3)
    options = parser.parse_args()
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    train(options)
    dist.destroy_process_group()


if __name__ == "__main__":
    print(f"started in {os.getcwd()}", flush=True)
    main()
