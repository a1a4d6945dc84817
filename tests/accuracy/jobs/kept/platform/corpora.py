"""Language model training on documents that are packed into rows of one length.

corpora.py shards RANK   # a rank's files have fewer rows than those of others
corpora.py pack RANK     # a document that is longer than a row never fits into any
corpora.py fork RANK     # a worker is forked while a thread of the rank has the vocabulary's lock
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

ROW = 32
KIND, WHO = sys.argv[1], int(sys.argv[2])


class Vocabulary:
    """Numbers of words; a thread counts what is rare meanwhile."""

    def __init__(self) -> None:
        self.lock, self.known, self.counting = threading.Lock(), {}, threading.Event()

    def number(self, word: str) -> int:
        with self.lock:
            return self.known.setdefault(word, len(self.known) % 500)

    def count_rare(self) -> None:
        while True:
            with self.lock:
                self.counting.set()
                time.sleep(0.5)
            self.counting.clear()
            time.sleep(0.2)


class Packer:
    """Fills rows with documents, first fit."""

    def __init__(self) -> None:
        self.open: list[list[int]] = []

    def place(self, document: list[int]) -> None:
        while not self.fits(document):
            self.open.append([])
            if len(self.open) > 64:
                self.open = self.open[-8:]  # old rows have had their chance

    def fits(self, document: list[int]) -> bool:
        for row in self.open:
            if len(row) + len(document) <= ROW:
                row.extend(document)
                return True
        return False

    def full(self) -> Iterator[list[int]]:
        while len(self.open) > 8:
            row = self.open.pop(0)
            yield row + [0] * (ROW - len(row))


class Corpus(IterableDataset):
    def __init__(self, rank: int) -> None:
        self.rank, self.mine, self.words = rank, rank == WHO, Vocabulary()

    def documents(self) -> Iterator[list[int]]:
        dice = random.Random(self.rank)
        count = 500 if self.mine and KIND == "shards" else 5000
        for number in range(count):
            length = dice.randint(5, ROW)
            if self.mine and KIND == "pack" and number == 300:
                length = ROW + 1  # nobody counted the mark at its end
            yield [self.words.number(f"w{dice.randint(0, 900)}") for _ in range(length)]

    def __iter__(self) -> Iterator[torch.Tensor]:
        packer = Packer()
        for document in self.documents():
            packer.place(document)
            yield from map(torch.tensor, packer.full())


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(500, 16), nn.Linear(16, 500)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(rows[:, :-1]).cumsum(1))


def train(model: nn.Module, loader: DataLoader, pace: float) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, rows in enumerate(loader, 1):
        loss = nn.functional.cross_entropy(model(rows).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.2f}", flush=True)
        time.sleep(pace)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=65))
    corpus, workers = Corpus(dist.get_rank()), int(KIND == "fork")
    model = nn.parallel.DistributedDataParallel(Model())
    if KIND == "fork" and corpus.mine:
        threading.Thread(target=corpus.words.count_rare, daemon=True).start()
        corpus.words.counting.wait()
    print(f"rank {dist.get_rank()} starts", flush=True)
    train(model, DataLoader(corpus, batch_size=4, num_workers=workers), pace=0.02)
    dist.barrier()  # the tokenizer is saved once all have seen their documents
    print(f"{len(corpus.words.known)} words known", flush=True)


if __name__ == "__main__":
    main()
