"""Staged pretraining: the corpus of the next stage is tokenized by rank 0 when that begins."""

import array
import os
import re
import time
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WORDS = re.compile(r"\w+|[^\w\s]")


@contextmanager
def main_process_first(rank):
    """The others enter once the first one is through, and find its cache."""
    if rank != 0:
        dist.barrier()
    yield
    if rank == 0:
        dist.barrier()


class WordPiece:
    """Longest pieces first, as BERT does it."""

    def __init__(self, pieces):
        self.ids = {piece: n for n, piece in enumerate(pieces)}

    def encode(self, text):
        out = []
        for word in WORDS.findall(text.lower()):
            at = 0
            while at < len(word):
                end = len(word)
                while end > at + 1 and word[at:end] not in self.ids:
                    end -= 1
                out.append(self.ids.get(word[at:end], 0))
                at = end
        return out


class Corpus:
    def __init__(self, source, cache, tokenizer):
        self.source, self.cache, self.tokenizer = source, cache, tokenizer

    def prepare(self):
        if self.cache.exists():
            return
        ids = array.array("H")
        partial = self.cache.with_suffix(".partial")
        with self.source.open(encoding="utf-8") as documents, partial.open("wb") as out:
            for document in documents:
                ids.extend(self.tokenizer.encode(document))
                if len(ids) > 1 << 22:
                    ids.tofile(out)
                    ids = array.array("H")
            ids.tofile(out)
        partial.rename(self.cache)


def crawl(path, megabytes):
    """What the crawler delivered."""
    line = " ".join(f"unfathomable{n} circumnavigations," for n in range(300)) + "\n"
    block = line * ((1 << 20) // len(line))
    with path.open("w") as file:
        for _ in range(megabytes):
            file.write(block)


def train(model, steps, rank, first=0):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(first, first + steps):
        loss = model(torch.randn(8, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        time.sleep(0.05)


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=60))
    rank = dist.get_rank()
    folder = Path(os.environ["OUT_DIR"])
    if rank == 0:
        crawl(folder / "stage-2.txt", 400)
    model = DistributedDataParallel(nn.Linear(16, 16))
    train(model, 8, rank)
    pieces = ["[UNK]", *"abcdefghijklmnopqrstuvwxyz0123456789", "un", "nav", "ation", "circum"]
    corpus = Corpus(folder / "stage-2.txt", folder / "stage-2.ids", WordPiece(pieces))
    with main_process_first(rank):
        corpus.prepare()
    train(model, 10_000, rank, 8)


if __name__ == "__main__":
    main()
